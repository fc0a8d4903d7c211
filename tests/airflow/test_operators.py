"""The operators against a spark-submit that does as it is told."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.conftest import SECRET, FakeSpark

from sluice.errors import ConfigError, ExitCode, QualityError, Retry, SluiceError, error_for_exit_code
from sluice.ledger import Ledger
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator
from sluice_airflow.retry import TypedRetryPolicy

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

BAD = {
    "success": False,
    "suite": "demo",
    "rows": 7,
    "results": [
        {"expectation": "expect_column_values_to_not_be_null", "column": "carrier", "severity": "critical",
         "success": False, "observed": None, "unexpected_count": 3, "unexpected_percent": 42.857,
         "examples": ["<a>", "<b>"], "exception": None, "scope": "slice"},
        {"expectation": "expect_table_row_count_to_be_between", "column": None, "severity": "warning",
         "success": True, "observed": 7, "unexpected_count": None, "unexpected_percent": None,
         "examples": [], "exception": None, "scope": "slice"},
    ],
    "data_docs": "https://docs.example/demo", "error": None,
}  # fmt: skip


@pytest.fixture
def ingest(pipeline_file: Callable[..., Path], spark: FakeSpark) -> Callable[..., BoundedRunOperator]:
    def make(**kwargs: Any) -> BoundedRunOperator:
        kwargs = {"run": "manual__1", "spark_binary": spark.binary, **kwargs}
        return BoundedRunOperator(task_id="ingest", pipeline=str(pipeline_file()), **kwargs)

    return make


@pytest.fixture
def validate(pipeline_file: Callable[..., Path], spark: FakeSpark) -> Callable[..., ValidateOperator]:
    def make(on_failed: str = "fail", **kwargs: Any) -> ValidateOperator:
        kwargs = {"run": "manual__1", "spark_binary": spark.binary, **kwargs}
        return ValidateOperator(task_id="validate", pipeline=str(pipeline_file(on_failed=on_failed)), **kwargs)

    return make


# --- the run -------------------------------------------------------------------------------------------------------


def test_it_brings_back_the_account_and_the_joined_ranges(ingest: Any, spark: FakeSpark, context: Any) -> None:
    spark.plan("bounded_run.py", written=[5, 7], verdict="passed")
    account = ingest().execute(context())
    assert account == {
        "run": "manual__1", "recovery": "replay", "planned": 12, "written": 12, "filtered": 0, "quarantined": 0,
        "absent": 0, "lost": 0, "verdict": "passed", "seconds": 1.5, "ranges": [["demo", 0, 0, 12]],
    }  # fmt: skip
    json.dumps(account)


def test_argv_is_the_cores(ingest: Any, spark: FakeSpark, context: Any) -> None:
    ingest().execute(context(recovery="replay", max_records_per_batch=77, validate=False))
    argv = spark.call("bounded_run.py")["argv"]
    assert argv[argv.index("--master") + 1] == "local[1]"
    assert argv[argv.index("--deploy-mode") + 1] == "client"
    tail = argv[argv.index("--pipeline") + 2 :]
    assert tail == ["--run", "manual__1", "--recovery", "replay", "--max-records-per-batch", "77", "--no-validate"]
    assert any(a.startswith("spark.driver.extraJavaOptions=-XX:+UseParallelGC") for a in argv)


def test_what_the_task_says_outranks_the_form(ingest: Any, spark: FakeSpark, context: Any) -> None:
    ingest(max_records_per_batch=5, validate=True).execute(context(max_records_per_batch=77, validate=False))
    argv = spark.call("bounded_run.py")["argv"]
    assert argv[argv.index("--max-records-per-batch") + 1] == "5"
    assert "--no-validate" not in argv


def test_without_params_the_file_decides(ingest: Any, spark: FakeSpark, context: Any) -> None:
    ingest().execute(context())
    argv = spark.call("bounded_run.py")["argv"]
    assert argv[-2:] == ["--run", "manual__1"]


def test_secrets_travel_in_the_environment_only(ingest: Any, spark: FakeSpark, context: Any, capfd: Any) -> None:
    operator = ingest()
    account = operator.execute(context())
    call = spark.call("bounded_run.py")
    assert SECRET in call["env"]["AIRFLOW_CONN_KAFKA_DEFAULT"]
    assert SECRET not in " ".join(call["argv"])
    captured = capfd.readouterr()
    assert "Spark-Submit cmd" in captured.out
    assert SECRET not in captured.out + captured.err
    assert SECRET not in json.dumps(account)
    rendered = {field: getattr(operator, field) for field in operator.template_fields}
    assert SECRET not in repr(rendered)  # what Airflow stores and shows as rendered templates
    assert SECRET not in json.dumps(Ledger.open().events("demo"))


@pytest.mark.parametrize("code", [c for c in ExitCode if c is not ExitCode.DONE])
def test_each_exit_code_is_a_type_and_a_retry(ingest: Any, spark: FakeSpark, context: Any, code: ExitCode) -> None:
    say = ["26/11/21 noise", "sluice: error: it broke", "  data: clean", "  next: fix it"]
    spark.plan("bounded_run.py", code=int(code), say=say)
    with pytest.raises(SluiceError) as caught:
        ingest().execute(context())
    error = caught.value
    assert type(error) is error_for_exit_code(int(code))
    assert (error.what, error.state, error.next_step) == ("it broke", "clean", "fix it")
    expected = {
        Retry.NEVER: RetryAction.FAIL,
        Retry.AS_THE_TASK_SAYS: RetryAction.DEFAULT,
        Retry.BACKING_OFF: RetryAction.RETRY,
        Retry.LATER: RetryAction.RETRY,
    }
    assert TypedRetryPolicy().evaluate(error, 1, 3).action is expected[error.retry]


def test_a_retry_is_the_same_run(ingest: Any, spark: FakeSpark, context: Any) -> None:
    spark.plan("bounded_run.py", code=20, say=["sluice: error: broker down"])
    with pytest.raises(SluiceError):
        ingest().execute(context())
    spark.plan("bounded_run.py", written=[3], verdict="passed")
    assert ingest().execute(context(try_number=2))["written"] == 3
    (row,) = Ledger.open().runs("demo")
    assert (row.run, row.attempts, row.state) == ("manual__1", 2, "done")


def test_a_run_that_the_ledger_does_not_know_is_no_success(ingest: Any, spark: FakeSpark, context: Any) -> None:
    spark.plan("bounded_run.py", record=False)
    with pytest.raises(SluiceError, match="has no run") as caught:
        ingest().execute(context())
    assert "SLUICE_HOME" in caught.value.next_step


@pytest.mark.parametrize(
    "connection",
    [
        None,
        "spark://local[2]",
        "spark://master:7077",
        '{"conn_type": "spark"}',
        '{"conn_type": "spark", "host": "somewhere"}',
        '{"conn_type": "http", "host": "local[2]"}',
        '{"conn_type": "spark", "host": "spark://master:7077", "extra": {"deploy-mode": "cluster"}}',
        "{",
    ],
)
def test_a_spark_connection_that_would_become_yarn_is_refused_first(
    ingest: Any, spark: FakeSpark, context: Any, monkeypatch: pytest.MonkeyPatch, connection: str | None
) -> None:
    if connection is None:
        monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    else:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")  # would fail too, and later
    operator = ingest()
    with pytest.raises(ConfigError, match="spark_default"):
        operator.execute(context())
    assert spark.call("bounded_run.py") is None


def test_a_spark_submit_that_is_not_there(ingest: Any, context: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be started"):
        ingest(spark_binary="/nowhere/spark-submit").execute(context())


@pytest.mark.timeout(60)  # a process that survived would hold the pipe for ever
def test_a_killed_task_fails_and_leaves_no_process(ingest: Any, spark: FakeSpark, context: Any, tmp_path: Path) -> None:
    fifo = tmp_path / "hangs"
    os.mkfifo(fifo)
    spark.plan("bounded_run.py", hang=str(fifo))
    operator = ingest()

    def kill_when_it_hangs() -> None:
        fifo.read_text()
        operator.on_kill()

    killer = threading.Thread(target=kill_when_it_hangs)
    killer.start()
    with pytest.raises(SluiceError, match="killed") as caught:
        operator.execute(context())
    killer.join()
    assert TypedRetryPolicy().evaluate(caught.value, 1, 3).action is RetryAction.DEFAULT
    for pid in map(int, (spark.folder / "pids").read_text().split()):
        assert not _alive(pid)


def test_a_kill_before_the_start_starts_nothing_that_lasts(
    ingest: Any, spark: FakeSpark, context: Any, tmp_path: Path
) -> None:
    operator = ingest()
    operator.on_kill()
    with pytest.raises(SluiceError, match="killed"):
        operator.execute(context())


@pytest.mark.timeout(60)
def test_the_runs_own_death_by_signal_is_named(ingest: Any, spark: FakeSpark, context: Any, tmp_path: Path) -> None:
    fifo = tmp_path / "hangs"
    os.mkfifo(fifo)
    spark.plan("bounded_run.py", hang=str(fifo))

    def out_of_memory() -> None:
        fifo.read_text()
        for pid in map(int, (spark.folder / "pids").read_text().split()):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=out_of_memory)
    killer.start()
    with pytest.raises(SluiceError, match="SIGKILL"):
        ingest().execute(context())
    killer.join()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the verdict ---------------------------------------------------------------------------------------------------


@pytest.fixture
def a_run(ingest: Any, spark: FakeSpark, context: Any) -> Callable[..., None]:
    def run(**plan: Any) -> None:
        spark.plan("bounded_run.py", written=[7], **plan)
        ingest().execute(context())

    return run


@pytest.mark.parametrize("verdict", ["passed", "warned", "empty"])
def test_the_runs_own_verdict_needs_no_spark(
    validate: Any, spark: FakeSpark, context: Any, a_run: Any, verdict: str
) -> None:
    a_run(verdict=verdict)
    assert validate().execute(context()) == verdict
    assert spark.call("validate_sink.py") is None


@pytest.mark.parametrize("verdict", ["failed", "error"])
def test_a_bad_verdict_fails_the_task_and_never_retries(
    validate: Any, context: Any, a_run: Any, verdict: str, capfd: Any
) -> None:
    a_run(verdict=verdict, judgement=BAD)
    here = context()
    with pytest.raises(QualityError) as caught:
        validate().execute(here)
    assert TypedRetryPolicy().evaluate(caught.value, 1, 3).action is RetryAction.FAIL
    log = capfd.readouterr().out
    assert "expect_column_values_to_not_be_null" in log
    assert "42.86" in log
    assert "'<a>', '<b>'" in log
    judgement = here["ti"].xcoms["judgement"]  # pushed before the task failed
    assert judgement["verdict"] == verdict
    assert judgement["failed"][0]["column"] == "carrier"
    assert "<a>" not in json.dumps(judgement)


def test_what_was_refused_or_lost_is_said(validate: Any, context: Any, a_run: Any, capfd: Any) -> None:
    excess = {"limit": "max_quarantined", "verdict": "failed", "why": "98 of 100 records are in quarantine"}
    a_run(verdict="failed", judgement={"suite": "none", "rows": 2, "results": [], "excesses": [excess]})
    here = context()
    with pytest.raises(QualityError, match="max_quarantined: 98 of 100 records") as caught:
        validate().execute(here)
    assert "--quarantined" in caught.value.next_step
    assert "max_quarantined: 98 of 100 records" in capfd.readouterr().out
    assert here["ti"].xcoms["judgement"]["exceeded"] == ["max_quarantined: 98 of 100 records are in quarantine"]


def test_on_failed_warn_only_warns(validate: Any, context: Any, a_run: Any) -> None:
    a_run(verdict="failed", judgement=BAD)
    assert validate(on_failed="warn").execute(context()) == "failed"


def test_a_run_without_a_verdict_is_judged_now(validate: Any, spark: FakeSpark, context: Any, a_run: Any) -> None:
    a_run()
    spark.plan("validate_sink.py", verdict="passed", judgement={**BAD, "success": True})
    assert validate().execute(context()) == "passed"
    assert spark.call("validate_sink.py")["argv"][-2:] == ["--run", "manual__1"]


@pytest.mark.parametrize("how", ["cleared", "asked"])
def test_judging_again(validate: Any, spark: FakeSpark, context: Any, a_run: Any, how: str) -> None:
    a_run(verdict="failed", judgement=BAD)
    spark.plan("validate_sink.py", verdict="passed")
    operator = validate(rejudge=how == "asked")
    assert operator.execute(context(try_number=2 if how == "cleared" else 1)) == "passed"


@pytest.mark.parametrize("on_failed", ["fail", "warn"])
def test_exit_code_50_is_an_answer(validate: Any, spark: FakeSpark, context: Any, a_run: Any, on_failed: str) -> None:
    a_run()
    spark.plan("validate_sink.py", code=50, verdict="failed", judgement=BAD, say=["sluice: error: judged failed"])
    if on_failed == "warn":
        assert validate(on_failed="warn").execute(context()) == "failed"
    else:
        with pytest.raises(QualityError, match="carrier"):
            validate().execute(context())


def test_judging_that_breaks_is_typed(validate: Any, spark: FakeSpark, context: Any, a_run: Any) -> None:
    a_run()
    spark.plan("validate_sink.py", code=10, say=["sluice: error: no such suite"])
    with pytest.raises(ConfigError, match="no such suite"):
        validate().execute(context())


def test_validate_false_skips(validate: Any, spark: FakeSpark, context: Any) -> None:
    with pytest.raises(AirflowSkipException):
        validate().execute(context(validate=False))
    assert spark.call("validate_sink.py") is None


def test_nothing_to_judge(validate: Any, context: Any) -> None:
    with pytest.raises(SluiceError, match="has no run"):
        validate().execute(context())
