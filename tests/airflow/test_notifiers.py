"""Alerts of failed runs: what a team's own notifier sends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException
from tests.airflow.conftest import DOWN, SECRET, FakeSpark
from tests.fixtures.mail import mail_server

from sluice.errors import OffsetsGoneError
from sluice.lag import Backlog, PartitionLag
from sluice_airflow.last_words import Hopeless
from sluice_airflow.notifiers import Failure, FailureNotifier, failure_of
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

GONE = [
    "sluice: error: offsets are gone from the source: demo-0 [3, 9)",
    "  data: nothing of this run was written",
    "  next: sluice run demo --recovery ignore_range",
]

ALERTS = """\
from pathlib import Path
from sluice_airflow.notifiers import FailureNotifier

def write(context):
    Path({file!r}).write_text(context["sluice"].subject + "\\n" + context["sluice"].text)

page = FailureNotifier(write)
"""


@pytest.fixture
def alerting(
    pipeline_file: Callable[..., Path],
    dags_in: Any,
    spark: FakeSpark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., DAG]:
    """Make the DAG of a pipeline file as Airflow does. ``alerts_of_runs.page`` writes the file ``paged``."""

    def make(more: str = 'airflow: {retries: 0, on_failure: ["alerts_of_runs:page"]}\n') -> DAG:
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # Spark's side reads the file, too
        monkeypatch.delitem(sys.modules, "alerts_of_runs", raising=False)
        (tmp_path / "alerts_of_runs.py").write_text(ALERTS.format(file=str(tmp_path / "paged")))
        monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file(more=more).parent))
        full = Backlog("demo", (PartitionLag("demo", 0, 0, 0, 12),))
        monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", lambda *_, **__: full)
        folder = tmp_path / "dags"
        folder.mkdir()
        (folder / "pipelines.py").write_text(
            '"""A DAG for each file."""\nfrom sluice_airflow.factory import build_all\nglobals().update(build_all())\n'
        )
        dag: DAG = dags_in(folder)["demo"]
        for task in ("ingest", "validate"):
            dag.get_task(task)._spark_binary = spark.binary
        return dag

    return make


@pytest.mark.parametrize("schedule", ["", "schedule: on_lag\n"])
def test_a_failed_run_alerts_with_the_words_of_the_task_that_failed(
    alerting: Any, call_back: Any, spark: FakeSpark, tmp_path: Path, schedule: str
) -> None:
    dag = alerting(f'airflow: {{retries: 0, on_failure: ["alerts_of_runs:page"]}}\n{schedule}')
    spark.plan("bounded_run.py", code=21, say=GONE)
    run = dag.test(logical_date=None)
    assert str(run.state) == "failed"
    call_back(run, tmp_path / "dags" / "pipelines.py")
    assert (tmp_path / "paged").read_text() == (
        "demo: ingest failed\n"
        "offsets are gone from the source: demo-0 [3, 9)\n"
        "  data: nothing of this run was written\n"
        "  next: sluice run demo --recovery ignore_range\n"
        f"  run: {run.run_id}"
    )


def test_a_run_that_waited_for_nothing_and_one_whose_verdict_failed_alert_as_well(
    alerting: Any, call_back: Any, spark: FakeSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, file = alerting(), tmp_path / "dags" / "pipelines.py"
    spark.plan("bounded_run.py", written=[12], verdict="failed", judgement={"results": []})
    call_back(dag.test(logical_date=None), file)
    said = (tmp_path / "paged").read_text()
    assert said.startswith("demo: validate failed\nrun ")
    assert "every row of the run is in the sink" in said
    refused = Backlog("demo", (), error=type(DOWN)("no broker answers", state="untouched", next_step="start it"))
    monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", lambda *_, **__: refused)
    monkeypatch.setattr("sluice_airflow.triggers.kafka_lag.look", lambda *_, **__: refused)
    monkeypatch.setattr(dag.get_task("wait_for_lag"), "timeout", 0.1)
    call_back(dag.test(logical_date=None), file)
    assert "demo: wait_for_lag failed\nno broker answers" in (tmp_path / "paged").read_text()


def test_a_run_that_succeeds_alerts_nobody(alerting: Any, spark: FakeSpark, tmp_path: Path) -> None:
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    assert str(alerting().test(logical_date=None).state) == "success"
    assert not (tmp_path / "paged").exists()


MAPPED = """\
from airflow.sdk import DAG
from alerts_of_runs import page
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator

with DAG("mapped", schedule=None, default_args={{"retries": 0, "spark_binary": {binary!r}}}, on_failure_callback=page):
    runs = BoundedRunOperator.partial(task_id="ingest").expand(pipeline=["orders", "refunds"])
    runs >> ValidateOperator(task_id="validate", pipeline="orders")
"""


def test_a_mapped_task_that_failed_is_named_and_not_what_waited_for_it(
    pipeline_file: Callable[..., Path],
    dags_in: Any,
    call_back: Any,
    spark: FakeSpark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline_file("refunds")
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file("orders").parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "alerts_of_runs", raising=False)
    (tmp_path / "alerts_of_runs.py").write_text(ALERTS.format(file=str(tmp_path / "paged")))
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "mapped.py").write_text(MAPPED.format(binary=spark.binary))
    spark.plan("bounded_run.py", written=[5], verdict="passed")
    spark.plan("bounded_run.py", only="refunds", code=21, say=GONE)
    run = dags_in(folder)["mapped"].test(logical_date=None)
    states = {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}
    assert states == {("ingest", 0): "success", ("ingest", 1): "failed", ("validate", -1): "upstream_failed"}
    call_back(run, folder / "mapped.py")
    assert (tmp_path / "paged").read_text().startswith("mapped: ingest[1] failed\noffsets are gone from the source")


def test_a_run_that_took_too_long_alerts_with_words_of_its_own(
    alerting: Any, call_back: Any, spark: FakeSpark, tmp_path: Path
) -> None:
    dag = alerting()
    dag.get_task("ingest").execution_timeout = timedelta(seconds=5)
    spark.plan("bounded_run.py", hang=str(tmp_path / "hangs"), once=True)
    run = dag.test(logical_date=None)
    assert str(run.state) == "failed"
    call_back(run, tmp_path / "dags" / "pipelines.py")
    said = (tmp_path / "paged").read_text()
    assert said.startswith("demo: ingest failed\nthe attempt took longer than its execution_timeout, and was ended\n")
    assert "finished by the next attempt" in said


def test_an_alert_has_nothing_of_a_drivers_output(
    alerting: Any, call_back: Any, spark: FakeSpark, tmp_path: Path
) -> None:
    spark.plan("bounded_run.py", code=30, say=[f"fs.s3a.secret.key={SECRET}", "java.io.IOException: refused"])
    call_back(alerting().test(logical_date=None), tmp_path / "dags" / "pipelines.py")
    said = (tmp_path / "paged").read_text()
    assert said.startswith("demo: ingest failed\nthe Spark application ended with exit code 30 (sink_failed)\n  data: ")
    assert SECRET not in said
    assert "IOException" not in said


# --- mail ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The messages that a mail server got, which is Airflow's."""
    with mail_server() as server:
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", server.connection)
        yield server.messages


def test_airflows_mail_notifier_sends_the_text(context: Any, mail: list[str]) -> None:
    notifier = FailureNotifier(
        SmtpNotifier(to="team@example.org", subject="{{ sluice.subject }}", html_content="{{ sluice.html }}")
    )
    for task in ("ingest", "validate"):
        notifier(failed(context(), task, OffsetsGoneError("5 < 6 are gone", state="untouched", next_step="go on")))
    first, second = mail
    assert first.startswith("to team@example.org: mine: ingest failed\n")
    assert second.startswith("to team@example.org: mine: validate failed\n"), "it renders its templates in place"
    assert "5 &lt; 6 are gone" in first
    assert "untouched" in first
    assert "go on" in first


def failed(context: dict[str, Any], task: str, error: BaseException) -> dict[str, Any]:
    """Return the context of a task's failure callback."""
    context["ti"].task_id = task
    return {**context, "dag": DAG("mine", schedule=None), "exception": error}


def test_a_foreign_error_is_named_by_its_type_only(context: Any) -> None:
    for kind in (ValueError, AirflowException, AirflowFailException):
        text = f"password={SECRET}\n  data: {SECRET}\n  next: {SECRET}"
        found = failure_of(failed(context(), "ingest", kind(text)))
        assert (found.what, SECRET in str(found)) == (f"{kind.__name__} was raised", False)
        assert "read the log of ingest" in found.text


def test_a_failure_that_is_never_tried_again_is_told_as_well(context: Any) -> None:
    found = failure_of(failed(context(), "fresh", Hopeless("it is late", state="untouched", next_step="wait")))
    assert (found.what, found.state, found.next_step) == ("it is late", "untouched", "wait")
    found = failure_of(failed(context(), "wait_for_lag", AirflowSensorTimeout(f"after {SECRET}")))
    assert found.what == "the sensor waited longer than its timeout"


def test_what_airflow_does_not_say_is_left_out(context: Any) -> None:
    dag = DAG("mine", schedule=None)
    assert failure_of({"dag": dag, "run_id": "r", "reason": "timed_out"}) == Failure(
        "mine", "r", "", "a task of this DAG run failed", failure_of({"dag": dag, "run_id": "r"}).state,
        "read the log of the task that failed, then clear that task",
    )  # fmt: skip


@pytest.mark.parametrize("reachable", [True, False])
def test_an_error_stays_what_it_is_also_where_airflow_takes_no_xcom(
    pipeline_file: Callable[..., Path], spark: FakeSpark, context: Any, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    here = context()
    spark.plan("bounded_run.py", code=21, say=GONE)
    if not reachable:
        monkeypatch.setattr(here["ti"], "xcom_push", None)
    operator = BoundedRunOperator(task_id="t", pipeline=str(pipeline_file()), run_id="r", spark_binary=spark.binary)
    with pytest.raises(OffsetsGoneError):
        operator.execute(here)
    if reachable:
        assert here["ti"].xcoms["failure"]["next_step"] == "sluice run demo --recovery ignore_range"


def test_a_skip_leaves_no_words(pipeline_file: Callable[..., Path], context: Any) -> None:
    here = context(validate=False)
    with pytest.raises(AirflowSkipException):
        ValidateOperator(task_id="t", pipeline=str(pipeline_file()), run_id="r").execute(here)
    assert here["ti"].xcoms == {}
