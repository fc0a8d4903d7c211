"""Alerts of failed runs: what a team's own notifier, or Airflow's mail notifier, sends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout
from tests.airflow.conftest import DOWN, SECRET, FakeSpark, unknown, use
from tests.fixtures.golden import Golden
from tests.fixtures.mail import mail_server

from sluice.errors import OffsetsGoneError
from sluice.lag import Backlog, Limits, PartitionLag
from sluice_airflow.failure_message import Hopeless
from sluice_airflow.notifiers import FailureNotifier, failure_of
from sluice_airflow.operators.bounded_run import BoundedRunOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

RUN = "run"
GONE = [
    f"fs.s3a.secret.key={SECRET}",
    "sluice: error: offsets are gone from the source: demo-0 [3, 9)",
    "  data: nothing of this run was written",
    "  next: sluice run demo --recovery ignore_range",
]

ALERTS = """\
from pathlib import Path
from sluice_airflow.notifiers import FailureNotifier

def write(context):
    Path({file!r}).write_text(context["sluice"].subject + "\\n" + context["sluice"].text)

def cheer(context):
    Path({file!r}).write_text("cheers")

page = FailureNotifier(write)
"""

ALL = '"""A DAG for each file."""\nfrom sluice_airflow.factory import build_all\nglobals().update(build_all())\n'

MAPPED = """\
from airflow.sdk import DAG
from alerts_of_runs import page
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator

with DAG("mapped", schedule=None, default_args={{"retries": 0, "spark_binary": {binary!r}}}, on_failure_callback=page):
    runs = BoundedRunOperator.partial(task_id="ingest").expand(pipeline=["demo", "refunds"])
    runs >> ValidateOperator(task_id="validate", pipeline="demo")
"""


@pytest.fixture
def paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str | None]:
    """Return the lines of ``alerts_of_runs.page`` since the last call."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # Spark's side reads the file, too
    monkeypatch.delitem(sys.modules, "alerts_of_runs", raising=False)
    file = tmp_path / "paged"
    (tmp_path / "alerts_of_runs.py").write_text(ALERTS.format(file=str(file)))

    def read() -> str | None:
        text = file.read_text() if file.exists() else None
        file.unlink(missing_ok=True)
        return text

    return read


@pytest.fixture
def dag_of(
    pipeline_file: Any, dags_in: Any, backlog: Any, paged: Any, spark: FakeSpark, tmp_path: Path, monkeypatch: Any
) -> Callable[..., tuple[DAG, Path]]:
    """Make a DAG as Airflow does; return it with its file."""

    def make(name: str, text: str, more: str = "") -> tuple[DAG, Path]:
        pipeline_file("refunds")
        monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file("demo", more=more).parent))
        return use(spark, dags_in(text)[name]), tmp_path / "dags" / "all.py"

    return make


@pytest.mark.long
def test_alert_of_a_failed_run_has_the_words_of_the_task_that_failed(
    dag_of: Any, call_back: Any, paged: Any, spark: FakeSpark, backlog: Any, golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    alerts = 'on_failure: ["alerts_of_runs:page"], on_success: ["alerts_of_runs:cheer"]'
    dag, file = dag_of("demo", ALL, f"schedule: on_lag\nairflow: {{retries: 0, {alerts}}}\n")
    spark.plan(RUN, written=[12], verdict="passed")
    assert str(dag.test(logical_date=None).state) == "success"
    assert paged() == "cheers"

    def alert(name: str) -> None:
        run = dag.test(logical_date=None)
        assert str(run.state) == "failed"
        assert paged() is not None, "Airflow's test runner calls it, too"
        call_back(run, file)
        text = paged()
        assert SECRET not in text
        golden("airflow", text, hide={run.run_id: "RUN"})
        assert text.startswith(f"demo: {name} failed\n")

    spark.plan(RUN, code=21, say=GONE)
    alert("ingest")
    spark.plan(RUN, written=[12], verdict="failed", judgement={"results": []})
    alert("validate")
    backlog(unknown(DOWN))
    monkeypatch.setattr(dag.get_task("wait_for_lag"), "timeout", 0.1)
    alert("wait_for_lag")


def test_alert_names_the_mapped_task_that_failed_and_not_the_task_that_waited_for_it(
    dag_of: Any, call_back: Any, paged: Any, spark: FakeSpark
) -> None:
    dag, file = dag_of("mapped", MAPPED.format(binary=spark.binary))
    spark.plan(RUN, written=[5], verdict="passed")
    spark.plan(RUN, only="refunds", code=21, say=GONE)
    run = dag.test(logical_date=None)
    states = {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}
    assert states == {("ingest", 0): "success", ("ingest", 1): "failed", ("validate", -1): "upstream_failed"}
    call_back(run, file)
    assert paged().startswith("mapped: ingest[1] failed\noffsets are gone from the source")


def test_freshness_dag_alerts_when_a_record_is_too_old(
    dag_of: Any, call_back: Any, paged: Any, backlog: Any, golden: Golden
) -> None:
    fresh = 'freshness: {max_age: 2h, cron: "0 7 * * *"}'
    more = f'airflow: {{retries: 0, on_failure: ["alerts_of_runs:page"], {fresh}}}\n'
    dag, file = dag_of("demo.freshness", ALL, more)
    backlog(Backlog("demo", (PartitionLag("demo", 0, 5, 0, 105, 10800.0),), Limits(10)))
    run = dag.test(logical_date=None)
    assert str(run.state) == "failed"
    paged()
    call_back(run, file)
    golden("airflow", paged(), hide={run.run_id: "RUN"})
    ended = [str(dag.test(logical_date=None, run_conf=conf).state) for conf in ({"max_age": "4h"}, {"maxage": "4h"})]
    assert ended == ["success", "failed"], "what the run is given counts, or is refused"


def failed(context: dict[str, Any], task: str, error: BaseException) -> dict[str, Any]:
    """Return the context of a task's failure callback."""
    context["ti"].task_id = task
    return {**context, "dag": DAG("mine", schedule=None), "exception": error}


def test_alert_by_airflows_mail_notifier_has_its_text_escaped(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = FailureNotifier(
        SmtpNotifier(to="team@example.org", subject="{{ sluice.subject }}", html_content="{{ sluice.html }}")
    )
    with mail_server() as server:
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", server.connection)
        for task in ("ingest", "validate"):  # it renders its templates in place
            notifier(failed(context(), task, OffsetsGoneError("5 < 6 are gone", state="untouched", next_step="go on")))
        for task, message in zip(("ingest", "validate"), server.messages, strict=True):
            assert message.startswith(f"to team@example.org: mine: {task} failed\n")
            assert [part for part in ("5 &lt; 6 are gone", "untouched", "go on") if part not in message] == []


@pytest.mark.parametrize(
    ("error", "what"),
    [
        *((kind(f"password={SECRET}\n  next: {SECRET}"), f"{kind.__name__} was raised")
          for kind in (ValueError, AirflowException, AirflowFailException)),
        (AirflowSensorTimeout(f"after {SECRET}"), "the sensor waited longer than its timeout"),
        (Hopeless("it is late", state="untouched", next_step="wait"), "it is late"),
    ],
)  # fmt: skip
def test_alert_names_a_foreign_error_by_its_type_only(context: Any, error: Exception, what: str) -> None:
    found = failure_of(failed(context(), "ingest", error))
    assert (found.what, SECRET in str(found)) == (what, False)
    if isinstance(error, Hopeless):
        assert (found.state, found.next_step) == ("untouched", "wait")
    elif "was raised" in what:
        assert "ingest" in found.next_step


def test_alert_leaves_out_the_task_that_airflow_does_not_name() -> None:
    found = failure_of({"dag": DAG("mine", schedule=None), "run_id": "r", "reason": "timed_out"})
    assert found.subject.startswith("mine")
    assert (found.state != "", "clear" in found.next_step) == (True, True)


@pytest.mark.parametrize("reachable", [True, False])
def test_error_of_a_task_stays_the_same_where_airflow_takes_no_xcom(
    pipeline_file: Any, spark: FakeSpark, context: Any, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    here = context()
    spark.plan(RUN, code=21, say=GONE)
    if not reachable:
        monkeypatch.setattr(here["ti"], "xcom_push", None)
    operator = BoundedRunOperator(task_id="t", pipeline=str(pipeline_file()), run_id="r", spark_binary=spark.binary)
    with pytest.raises(OffsetsGoneError):
        operator.execute(here)
    if reachable:
        assert here["ti"].xcoms["failure"]["next_step"] == "sluice run demo --recovery ignore_range"
