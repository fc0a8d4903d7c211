"""The operator that runs, against a spark-submit that does as it is told."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowSkipException
from tests.airflow.conftest import SECRET, FakeSpark

from sluice.errors import ConfigError, ExitCode, Retry, SluiceError, error_for_exit_code
from sluice.ledger import Ledger
from sluice.run.decision import accept
from sluice_airflow.retry import TypedRetryPolicy

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_it_brings_back_the_account_and_the_joined_ranges(ingest: Any, spark: FakeSpark, context: Any) -> None:
    spark.plan("bounded_run.py", written=[5, 7], verdict="passed")
    account = ingest().execute(context())
    assert account == {
        "run": "manual__1", "recovery": "replay", "planned": 12, "written": 12, "filtered": 0, "quarantined": 0,
        "absent": 0, "lost": 0, "verdict": "passed", "seconds": 1.5, "ranges": [["demo", 0, 0, 12]],
    }  # fmt: skip
    json.dumps(account)


def test_the_button_to_the_page_is_there_while_the_run_is_at_work(ingest: Any, spark: FakeSpark, context: Any) -> None:
    spark.plan("bounded_run.py", code=20)
    here = context()
    with pytest.raises(SluiceError):
        ingest().execute(here)
    assert here["ti"].xcoms["_link_PageLink"].endswith("/plugin/sluice/sluice/?pipeline=demo&run=manual__1")


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


def test_the_connection_of_the_sink_travels_beside_that_of_the_source(
    ingest: Any, spark: FakeSpark, context: Any, pipeline_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = {"conn_type": "postgres", "host": "db", "login": "me", "password": "pg-secret", "schema": "shop"}
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(secret))
    operator = ingest()
    file = pipeline_file()
    file.write_text(file.read_text().replace("{delta: {path: demo}}", "{postgres: {table: demo}}"))
    operator.execute(context())
    call = spark.call("bounded_run.py")
    assert json.loads(call["env"]["AIRFLOW_CONN_POSTGRES_DEFAULT"]) == secret
    assert SECRET in call["env"]["AIRFLOW_CONN_KAFKA_DEFAULT"]
    assert "pg-secret" not in " ".join(call["argv"])


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


@pytest.mark.parametrize("code", [c for c in ExitCode if c not in (ExitCode.DONE, ExitCode.HELD)])
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


def test_a_run_of_a_pipeline_that_is_held_is_skipped(
    ingest: Any, spark: FakeSpark, context: Any, pipeline_file: Any
) -> None:
    spark.plan("bounded_run.py", written=[5], verdict="failed")
    ingest().execute(context())
    (spark.folder / "bounded_run.py.call").unlink()
    file = str(pipeline_file(on_failed="hold"))
    with pytest.raises(AirflowSkipException, match=r"'demo' is held: run 'manual__1' has the verdict failed"):
        ingest(pipeline=file, run_id="manual__2").execute(context())
    assert spark.call("bounded_run.py") is None, "no Spark is started"
    spark.plan("bounded_run.py", code=ExitCode.HELD, say=["sluice: error: pipeline 'demo' is held: landed alone"])
    with pytest.raises(AirflowSkipException, match="is held: landed alone"):
        ingest(pipeline=file, run_id="manual__2", recovery="wal").execute(context())
    assert spark.call("bounded_run.py") is not None, "the log goes on"
    accept(Ledger.open(), "demo", "manual__1", reason="known gap")
    spark.plan("bounded_run.py", written=[5], verdict="passed")
    assert ingest(pipeline=file, run_id="manual__2").execute(context())["written"] == 5


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

    killer = threading.Thread(target=kill_when_it_hangs, daemon=True)
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

    killer = threading.Thread(target=out_of_memory, daemon=True)
    killer.start()
    with pytest.raises(SluiceError, match="SIGKILL"):
        ingest().execute(context())
    killer.join()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
