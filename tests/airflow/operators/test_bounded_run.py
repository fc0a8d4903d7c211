"""The operators that run and judge, and what every operator that starts Spark shares; spark-submit is a fake."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.conftest import SECRET, FakeSpark
from tests.fixtures.ledgers import attempt
from tests.fixtures.runs import await_that

from sluice.errors import ConfigError, LeaseHeldError, OffsetsGoneError, QualityError, Retry, SluiceError
from sluice.ledger import Ledger
from sluice.recovery import Recovery
from sluice.run.actions import RunRequest, Validate
from sluice.run.decision import accept
from sluice_airflow.links.spark_ui import SparkUiLink
from sluice_airflow.operators.account import AccountOperator
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator
from sluice_airflow.retry import TypedRetryPolicy

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

RUN, VALIDATE = "run", "validate"


def after(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def test_bounded_run_returns_the_account_with_joined_ranges(make: Any, spark: FakeSpark, context: Any) -> None:
    spark.plan(RUN, written=[5, 7], verdict="passed", say=["12:00:00 sluice: Spark's web UI: http://worker:4040"])
    here = context()
    operator = make(BoundedRunOperator)
    assert operator.execute(here) == {
        "run": "manual__1", "recovery": "replay", "planned": 12, "written": 12, "filtered": 0, "quarantined": 0,
        "absent": 0, "lost": 0, "verdict": "passed", "seconds": 1.5, "ranges": [["p", 0, 0, 12]],
    }  # fmt: skip
    link = SparkUiLink()
    assert here["ti"].xcoms[link.xcom_key] == "http://worker:4040", "while the driver lives"
    assert link.get_link(operator, ti_key=None) == "", "Airflow asks when the task has ended"


@pytest.mark.parametrize(
    ("kwargs", "form", "asked"),
    [
        ({}, {}, RunRequest("manual__1")),
        (
            {},
            {"recovery": "replay", "max_records_per_batch": 77, "validate": False},
            RunRequest("manual__1", Recovery.REPLAY, 77, validate=False),
        ),
        (
            {"max_records_per_batch": 5, "validate": True},
            {"max_records_per_batch": 77, "validate": False},
            RunRequest("manual__1", max_records_per_batch=5),
        ),
    ],
)
def test_bounded_run_takes_arguments_from_task_form_and_file_in_this_order(
    make: Any, spark: FakeSpark, context: Any, kwargs: Any, form: Any, asked: RunRequest
) -> None:
    make(BoundedRunOperator, **kwargs).execute(context(**form))
    argv = spark.calls[RUN]["argv"]
    assert (after(argv, "--master"), after(argv, "--deploy-mode")) == ("local[1]", "client")
    assert spark.calls[RUN]["action"] == asked
    assert any(a.startswith("spark.driver.extraJavaOptions=-XX:+UseParallelGC") for a in argv)


def test_bounded_run_passes_secrets_in_the_environment_only(
    make: Any, spark: FakeSpark, context: Any, pipeline_file: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    secret = {"conn_type": "postgres", "host": "db", "login": "me", "password": "pg-secret", "schema": "shop"}
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(secret))
    operator, file = make(BoundedRunOperator), pipeline_file("p")
    file.write_text(file.read_text().replace("{delta: {path: p}}", "{postgres: {table: p}}"))
    account = operator.execute(context())
    call = spark.calls[RUN]
    assert json.loads(call["env"]["AIRFLOW_CONN_POSTGRES_DEFAULT"]) == secret
    assert SECRET in call["env"]["AIRFLOW_CONN_KAFKA_DEFAULT"]
    captured = capfd.readouterr()
    assert "Spark-Submit cmd" in captured.out
    rendered = {field: getattr(operator, field) for field in operator.template_fields}  # as Airflow stores and shows
    seen = [*call["argv"], captured.out, captured.err, repr(account), repr(rendered), repr(Ledger.open().events("p"))]
    assert [text for text in seen if SECRET in text or "pg-secret" in text] == []


def test_bounded_run_that_fails_has_the_last_words_and_the_page_of_its_run(
    make: Any, spark: FakeSpark, context: Any
) -> None:
    spark.plan(RUN, code=21, say=["26/11/21 noise", "sluice: error: it broke", "  data: clean", "  next: fix"])
    here = context()
    with pytest.raises(OffsetsGoneError) as caught:
        make(BoundedRunOperator).execute(here)
    assert (caught.value.what, caught.value.state, caught.value.next_step) == ("it broke", "clean", "fix")
    assert here["ti"].xcoms["_link_PageLink"].endswith("/plugin/sluice/sluice/?pipeline=p&run=manual__1")


def test_bounded_run_fails_when_the_ledger_does_not_have_its_run(make: Any, spark: FakeSpark, context: Any) -> None:
    spark.plan(RUN, record=False)
    with pytest.raises(SluiceError) as caught:
        make(BoundedRunOperator).execute(context())
    assert "SLUICE_HOME" in caught.value.next_step


@pytest.mark.parametrize("connection", [None, "spark://local[2]", '{"conn_type": "spark"}', "{"])
def test_bounded_run_refuses_a_spark_connection_that_would_become_yarn(
    make: Any, spark: FakeSpark, context: Any, monkeypatch: pytest.MonkeyPatch, connection: str | None
) -> None:
    if connection is None:
        monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    else:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")  # would fail too, and later
    with pytest.raises(ConfigError, match="spark_default"):
        make(BoundedRunOperator).execute(context())
    assert spark.calls.get(RUN) is None


def test_bounded_run_takes_spark_settings_from_the_file_and_the_task_outranks_it(
    make: Any, pipeline_file: Any, spark: FakeSpark, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "spark://master:7077"}')
    memory = {"driver_memory": "{{ params.memory }}", "executor_memory": "{{ params.none }}"}
    task = make(BoundedRunOperator, **memory, conf={"spark.b": "{{ 1 + 1 }}"})
    of_file = "connection: cluster, driver_memory: 1g, executor_cores: 3, conf: {spark.a: 1, spark.b: 1}"
    pipeline_file("p", more=f"spark: {{{of_file}}}\n")
    here = context(memory="5g", none=None)
    task.render_template_fields(here)
    task.execute(here)
    argv = spark.calls[RUN]["argv"]
    found = [after(argv, option) for option in ("--master", "--driver-memory", "--executor-cores")]
    assert found == ["spark://master:7077", "5g", "3"]
    assert "--executor-memory" not in argv
    assert {"spark.a=1", "spark.b=2", "spark.sql.session.timeZone=UTC"} <= set(argv)


HONOURED = {
    "self", "kwargs", "conn_id", "spark_binary", "conf", "driver_memory", "executor_memory", "executor_cores",
    "num_executors", "total_executor_cores",
}  # fmt: skip


def test_bounded_run_refuses_each_argument_of_spark_submit_that_would_do_nothing() -> None:
    unused = set(inspect.signature(SparkSubmitOperator.__init__).parameters) - HONOURED
    assert {"application", "jars", "files"} < unused
    for kind in (BoundedRunOperator, ValidateOperator):
        for name in unused:
            with pytest.raises(ConfigError) as caught:
                kind(task_id="ingest", pipeline="orders", **{name: "x"})
            assert name in caught.value.what
            assert "driver_memory" in caught.value.next_step


@pytest.mark.parametrize("kind", [BoundedRunOperator, ValidateOperator])
def test_bounded_run_refuses_a_wrong_spark_setting_when_the_dag_is_read(kind: type) -> None:
    for name, wrong in (("conf", {"spark.driver.memory": "4g"}), ("driver_memory", "much"), ("executor_cores", 0)):
        with pytest.raises(ConfigError, match=name):
            kind(task_id="ingest", pipeline="orders", **{name: wrong})


def test_bounded_run_without_spark_submit_is_a_configuration_error(make: Any, context: Any) -> None:
    with pytest.raises(ConfigError, match="spark-submit"):
        make(BoundedRunOperator, spark_binary="/nowhere/spark-submit").execute(context())


@pytest.mark.timeout(60)  # a process that survived would hold the pipe for ever
@pytest.mark.parametrize("how", ["on_kill", "SIGKILL"])
def test_bounded_run_that_is_killed_fails_and_leaves_no_process(
    make: Any, spark: FakeSpark, context: Any, tmp_path: Path, how: str
) -> None:
    fifo = tmp_path / "hangs"
    os.mkfifo(fifo)
    spark.plan(RUN, hang=str(fifo))
    operator = make(BoundedRunOperator)

    def pids() -> list[int]:
        return [int(pid) for pid in (spark.folder / "pids").read_text().split()]

    def kill_when_it_hangs() -> None:
        fifo.read_text()
        if how == "on_kill":  # Airflow ends the task
            operator.on_kill()
        else:  # the machine is out of memory
            for pid in pids():
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_it_hangs, daemon=True)
    killer.start()
    with pytest.raises(SluiceError, match="killed" if how == "on_kill" else "SIGKILL") as caught:
        operator.execute(context())
    killer.join()
    assert TypedRetryPolicy().evaluate(caught.value, 1, 3).action is RetryAction.DEFAULT
    await_that(lambda: not any(map(lives, pids())), "no process is left")


def test_bounded_run_that_is_killed_before_it_starts_fails(make: Any, context: Any) -> None:
    operator = make(BoundedRunOperator)
    operator.on_kill()
    with pytest.raises(SluiceError, match="killed"):
        operator.execute(context())


def result(name: str, severity: str, **more: Any) -> dict[str, Any]:
    return {"expectation": name, "severity": severity, "success": False, "exception": None, "scope": "slice", **more}


BAD = {
    "success": False,
    "suite": "demo",
    "rows": 7,
    "results": [
        result("not_null", "critical", column="carrier", observed=None, unexpected_count=3, unexpected_percent=42.857,
               examples=["<a>", "<b>"]),
        result("row_count", "warning", column=None, success=True, observed=7, unexpected_count=None, examples=[]),
        result("warning_one", "warning"), result("info_one", "info"),
        result("broken_one", "info", exception="ValueError: no"),
    ],
    "excesses": [{"limit": "max_quarantined", "verdict": "failed", "why": "98 of 100 records are in quarantine"},
                 {"limit": "max_lost", "verdict": "warned", "why": "1 of 10"}],
    "data_docs": "https://docs.example/demo", "error": None,
}  # fmt: skip


@pytest.fixture
def a_run(make: Any, spark: FakeSpark, context: Any) -> Callable[..., None]:
    def run(**plan: Any) -> None:
        spark.plan(RUN, written=[7], **plan)
        make(BoundedRunOperator).execute(context())

    return run


@pytest.mark.parametrize("verdict", ["passed", "warned", "empty"])
def test_validate_takes_a_good_verdict_without_spark(
    make: Any, spark: FakeSpark, context: Any, a_run: Any, verdict: str
) -> None:
    a_run(verdict=verdict)
    assert make(ValidateOperator).execute(context()) == verdict
    assert spark.calls.get(VALIDATE) is None


@pytest.mark.parametrize("verdict", ["failed", "error"])
def test_validate_fails_for_good_on_a_bad_verdict_and_names_its_causes(
    make: Any, context: Any, a_run: Any, verdict: str, capfd: Any
) -> None:
    a_run(verdict=verdict, judgement=BAD)
    here = context()
    with pytest.raises(QualityError) as caught:
        make(ValidateOperator).execute(here)
    assert TypedRetryPolicy().evaluate(caught.value, 1, 3).action is RetryAction.FAIL
    causes = ("not_null", "broken_one", "max_quarantined") if verdict == "failed" else ()
    assert [cause for cause in causes if cause not in caught.value.what] == []
    assert [no for no in ("warning_one", "info_one", "max_lost", "row_count") if no in caught.value.what] == []
    assert verdict == "error" or "--quarantined" in caught.value.next_step
    log = capfd.readouterr().out
    assert [word for word in ("not_null", "42.86", "'<a>', '<b>'", "98 of 100") if word not in log] == []
    judgement = here["ti"].xcoms["judgement"]  # pushed before the task failed
    assert (judgement["verdict"], judgement["failed"][0]["column"]) == (verdict, "carrier")
    assert judgement["exceeded"][0] == "max_quarantined: 98 of 100 records are in quarantine"
    assert "<a>" not in json.dumps(judgement), "values of records are in no XCom"


def test_validate_goes_on_after_a_warning_or_an_acceptance(
    make: Any, context: Any, a_run: Any, pipeline_file: Any
) -> None:
    a_run(verdict="failed", judgement=BAD)
    operator = make(ValidateOperator)
    pipeline_file("p", on_failed="warn")
    assert operator.execute(context()) == "failed"
    file = pipeline_file("p", on_failed="hold")
    with pytest.raises(QualityError) as caught:
        operator.execute(context())
    assert f"sluice accept {file} manual__1 --reason TEXT" in caught.value.next_step
    accept(Ledger.open(), "p", "manual__1", reason="known gap")
    assert operator.execute(context()) == "failed"


@pytest.mark.parametrize("why", ["no verdict", "cleared", "rejudge"])
def test_validate_judges_by_spark_where_it_must(
    make: Any, spark: FakeSpark, context: Any, a_run: Any, why: str
) -> None:
    a_run(**({} if why == "no verdict" else {"verdict": "failed", "judgement": BAD}))
    spark.plan(VALIDATE, verdict="passed", judgement={**BAD, "success": True})
    operator = make(ValidateOperator, rejudge=why == "rejudge")
    assert operator.execute(context(try_number=2 if why == "cleared" else 1)) == "passed"
    assert spark.calls[VALIDATE]["action"] == Validate("manual__1")


@pytest.mark.parametrize(
    ("code", "on_failed", "error"),
    [(50, "fail", QualityError), (50, "warn", None), (10, "fail", ConfigError), (10, "warn", ConfigError)],
)
def test_validate_takes_exit_code_50_as_an_answer_and_others_as_failures(
    make: Any, spark: FakeSpark, context: Any, a_run: Any, pipeline_file: Any, code: int, on_failed: str, error: Any
) -> None:
    a_run()
    operator = make(ValidateOperator)
    pipeline_file("p", on_failed=on_failed)
    spark.plan(VALIDATE, code=code, verdict="failed", judgement=BAD, say=["sluice: error: no such suite"])
    if error is None:
        assert operator.execute(context()) == "failed"
    else:
        with pytest.raises(error, match="not_null" if code == 50 else "no such suite"):
            operator.execute(context())


def test_validate_is_skipped_by_the_form_and_fails_without_a_run(make: Any, spark: FakeSpark, context: Any) -> None:
    here = context(validate=False)
    with pytest.raises(AirflowSkipException):
        make(ValidateOperator).execute(here)
    assert (here["ti"].xcoms, spark.calls.get(VALIDATE)) == ({}, None), "a skip leaves no words for alerts"
    with pytest.raises(SluiceError) as caught:
        make(ValidateOperator).execute(context())
    assert "ingest" in caught.value.next_step
    assert caught.value.retry is Retry.AS_THE_TASK_SAYS


@pytest.mark.parametrize("end", ["at work", "died", "failed"])
@pytest.mark.parametrize(
    ("operator", "more"), [(ValidateOperator, {}), (AccountOperator, {"name": "p", "run_id": "manual__1"})]
)
def test_validate_and_account_refuse_a_run_whose_task_was_marked_as_success_before_its_end(
    make: Any, spark: FakeSpark, context: Any, operator: Any, more: dict[str, str], end: str
) -> None:
    ledger = Ledger.open()
    with attempt(ledger, "manual__1", state="failed" if end == "failed" else None):
        if end == "at work":
            with pytest.raises(LeaseHeldError, match="at work"):
                make(operator, **more).execute(context())
    if end != "at work":
        with pytest.raises(SluiceError, match="never ended" if end == "died" else "ended as failed") as caught:
            make(operator, **more).execute(context())
        assert "clear the ingest task" in caught.value.next_step
    assert (spark.calls, ledger.runs.known("p", "manual__1").verdict) == ({}, None)


@pytest.mark.parametrize("wrong", ["yes", 1, "banana"])
def test_flag_of_an_operator_is_true_or_false(make: Any, wrong: Any) -> None:
    for operator, name in ((BoundedRunOperator, "validate"), (ValidateOperator, "rejudge")):
        with pytest.raises(ConfigError, match="neither true nor false"):
            make(operator, **{name: wrong})
