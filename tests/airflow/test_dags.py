"""The project's own DAGs, and whole runs of them in Airflow's test runner, with the fake spark-submit."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, timezone
from tests.airflow.conftest import PROJECT, SECRET, FakeSpark, account_for, states, use

from sluice.errors import ExitCode, SourceUnreachableError
from sluice.lag import Backlog, PartitionLag
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice.run.actions import RunRequest
from sluice.run.decision import accept
from sluice.run.interval import Interval
from sluice_airflow.group import SluiceTaskGroup

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

RUN = "run"
TASKS = ["wait_for_lag", "ingest", "validate", "account"]


def test_dags_of_the_project_are_sound() -> None:
    bag = DagBag(PROJECT / "dags")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"flights", "flights_monthly", "recovery_side_by_side"}
    assert bag.dags["flights"].task_ids == TASKS
    assert {(dag.max_active_runs, dag.catchup) for dag in bag.dags.values()} == {(1, False)}


def test_side_by_side_dag_has_a_table_a_verdict_and_an_event_for_each_strategy() -> None:
    dag = DagBag(PROJECT / "dags").dags["recovery_side_by_side"]
    groups = [group for group in dag.task_group.children.values() if isinstance(group, SluiceTaskGroup)]
    assert len(dag.tasks) == len(TASKS) * len(groups)
    asked = {group.group_id: (Recovery(group.ingest.recovery), load(group.ingest.pipeline)) for group in groups}
    assert sorted(strategy for strategy, _ in asked.values()) == sorted(Recovery)
    for strategy, pipeline in asked.values():
        assert (pipeline.kafka.topics, pipeline.recovery) == (["flights"], strategy)
    assert len({p.name for _, p in asked.values()} | {p.sink.delta.path for _, p in asked.values()}) == len(Recovery)


def test_dag_run_succeeds_and_announces_its_ranges(dag: DAG, spark: FakeSpark, events: Any, capfd: Any) -> None:
    spark.plan(RUN, written=[12], verdict="passed")
    run = dag.test(logical_date=None)
    assert states(run) == dict.fromkeys(TASKS, "success")
    assert spark.calls[RUN]["action"].run_id == run.run_id
    ((uri, event),) = events()
    assert (uri, event["ranges"]) == ("x-sluice://flights", [["flights", 0, 0, 12]])
    assert (event["written"], event["verdict"]) == (12, "passed")
    captured = capfd.readouterr()
    assert "in all: 12 planned, 12 written" in captured.out
    assert SECRET not in captured.out + captured.err + json.dumps(event)


@pytest.mark.parametrize(
    ("source", "dated"),
    [
        ({"file": {"path": "inbox", "format": "json"}}, True),
        ({"queue": {"connection": "redis_default", "kind": "redis_streams", "streams": ["s"]}}, False),
    ],
    ids=["file", "queue"],
)
def test_dag_run_does_not_wait_for_a_source_without_a_lag(
    spark: FakeSpark, dags_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], dated: bool
) -> None:
    connection = {"conn_type": "redis", "host": "redis", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_DEFAULT", json.dumps(connection))
    spec = {"pipeline": "demo", "source": source, "decode": {"text": {}}, "sink": {"delta": {"path": "demo"}}}
    (tmp_path / "demo.yaml").write_text(json.dumps(spec))
    made = f"from sluice_airflow.factory import build_dag\n\ndag = build_dag({str(tmp_path / 'demo.yaml')!r})\n"
    dag = use(spark, dags_in(made)["demo"])
    spark.plan(RUN, written=[12], verdict="passed")
    when = timezone.datetime(2026, 11, 2, 5) if dated else None
    run = dag.test(logical_date=when, run_after=timezone.utcnow())
    assert (states(run), run.logical_date) == (dict.fromkeys(TASKS[1:], "success"), when)
    call = spark.calls[RUN]
    if "queue" in source:
        assert json.loads(call["env"]["AIRFLOW_CONN_REDIS_DEFAULT"])["password"] == SECRET
    assert SECRET not in json.dumps(call["argv"])


def test_dag_run_of_an_interval_waits_for_no_lag_and_skips_the_verdict_if_asked(
    dag: DAG, spark: FakeSpark, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", lambda *_, **__: pytest.fail("it looked at the lag"))
    spark.plan(RUN, written=[12], verdict="passed")
    conf = {"mode": "interval", "start": "2013-03-01T00:00:00Z", "end": "2013-04-01T00:00:00Z", "reason": "it's wrong"}
    run = dag.test(logical_date=None, run_conf={**conf, "validate": False, "recovery": "hot"})
    assert states(run) == dict.fromkeys(TASKS, "success") | {"validate": "skipped"}
    interval = Interval.parse("2013-03-01", "2013-04-01")
    asked = RunRequest(f"{run.run_id}__interval", Recovery.HOT, None, interval, "it's wrong", validate=False)
    assert spark.calls[RUN]["action"] == asked
    assert len(events()) == 1


def test_dag_run_goes_through_once_the_broker_is_back(
    dag: DAG, spark: FakeSpark, backlog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = Backlog("flights", (), error=SourceUnreachableError("no broker answers"))
    monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", lambda *_, **__: down)
    spark.plan(RUN, written=[12], verdict="passed")
    assert set(states(dag.test(logical_date=None)).values()) == {"success"}


def test_dag_run_with_nothing_to_read_is_skipped_by_on_idle(dag: DAG, spark: FakeSpark, backlog: Any) -> None:
    backlog(Backlog("flights", (PartitionLag("flights", 0, 12, 0, 12),)))
    # by the names that Airflow has for the kinds of a run
    dag.get_task("wait_for_lag").on_idle = "{{ 'skip' if dag_run.run_type == 'manual' else 'proceed' }}"
    assert set(states(dag.test(logical_date=None)).values()) == {"skipped"}
    assert spark.calls.get(RUN) is None


def test_dag_run_ends_at_the_first_try_after_a_failure_that_a_retry_cannot_help(
    dag: DAG, spark: FakeSpark, capfd: Any
) -> None:
    spark.plan(RUN, written=[5], code=21, say=["sluice: error: offsets are gone"])
    run = dag.test(logical_date=None)
    (ingest,) = (ti for ti in run.get_task_instances() if ti.task_id == "ingest")
    assert (str(run.state), str(ingest.state), ingest.try_number, ingest.max_tries) == ("failed", "failed", 1, 3)
    row = Ledger.open().runs.find("flights", run.run_id)
    assert row.attempts == 1
    assert "in all: 5 planned, 5 written" in capfd.readouterr().out, "what it committed before it failed"


def test_dag_run_that_was_never_planned_fails_its_account(dag: DAG, spark: FakeSpark, capfd: Any) -> None:
    spark.plan(RUN, record=False, code=10, say=["sluice: error: wrong"])
    run = dag.test(logical_date=None)
    assert (str(run.state), states(run)["account"]) == ("failed", "failed")
    assert "before it was planned" in capfd.readouterr().out


def test_dag_run_with_wrong_params_ends_at_once_and_reads_nothing(dag: DAG, spark: FakeSpark, capfd: Any) -> None:
    run = dag.test(logical_date=None, run_conf={"strat": "2013-03-01T00:00:00Z"})
    (first,) = (ti for ti in run.get_task_instances() if ti.task_id == "wait_for_lag")
    assert (str(run.state), str(first.state), first.try_number) == ("failed", "failed", 1)
    assert (spark.calls.get(RUN), Ledger.open().runs.newest("flights")) == (None, [])
    assert "'start'" in capfd.readouterr().out


def test_dag_run_of_a_held_pipeline_is_skipped_until_the_verdict_is_accepted(
    dag: DAG, spark: FakeSpark, events: Any, tmp_path: Path
) -> None:
    file = tmp_path / "flights.yaml"
    spec = yaml.safe_load(load("flights").file.read_text())
    file.write_text(yaml.safe_dump({**spec, "quality": {"on_failed": "hold"}}))
    for task in TASKS[1:]:
        dag.get_task(task).pipeline = str(file)
    spark.plan(RUN, written=[12], verdict="failed", judgement={"results": []})
    bad = dag.test(logical_date=None)
    assert states(bad)["validate"] == "failed"
    spark.plan(RUN, code=ExitCode.HELD, say=["sluice: error: pipeline 'flights' is held"])
    for recovery in ("replay", "wal"):
        run = dag.test(logical_date=None, run_conf={"recovery": recovery})
        assert states(run) == dict.fromkeys(TASKS[1:], "skipped") | {"wait_for_lag": "success"}
        # one by wal landed records and so is in the ledger, and announces nothing of the rows that are held
        assert (Ledger.open().runs.find("flights", run.run_id) is None) is (recovery == "replay")
    assert events() == []
    accept(Ledger.open(), "flights", bad.run_id, reason="known gap")
    spark.plan(RUN, written=[12], verdict="passed")
    assert set(states(dag.test(logical_date=None)).values()) == {"success"}
    assert len(events()) == 1


@pytest.mark.timeout(90)
def test_dag_run_ends_a_driver_that_hangs_by_the_execution_timeout_and_tries_again(
    dag: DAG, spark: FakeSpark, tmp_path: Path
) -> None:
    spark.plan(RUN, hang=str(tmp_path / "hangs"), once=True)
    ingest = dag.get_task("ingest")
    ingest.execution_timeout, ingest.retry_delay = timedelta(seconds=5), timedelta(seconds=1)
    run = dag.test(logical_date=None, run_conf={"validate": False})
    (found,) = (ti for ti in run.get_task_instances() if ti.task_id == "ingest")
    assert (str(found.state), found.try_number) == ("success", 2)
    (row,) = Ledger.open().runs.newest("flights")
    assert (row.run, row.state) == (run.run_id, "done")
    pids = [int(pid) for pid in (spark.folder / "pids").read_text().split()]
    assert [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE] == []


def test_maintenance_dag_redrives_nothing_by_default_and_proves_the_account(
    pipeline_file: Any, spark: FakeSpark, dags_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account_for((0, 5))
    folder = pipeline_file("p", more="airflow: {maintenance: manual, retries: 0}\n").parent
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    dag = dags_in((PROJECT / "dags" / "pipelines.py").read_text())["p.maintenance"]
    dag.get_task("audit").deep = False  # there are no tables
    assert states(dag.test(logical_date=None)) == {"redrive": "skipped", "audit": "success", "clean": "success"}
    run = dag.test(logical_date=None, run_conf={"redriv": "lost"})
    assert states(run)["redrive"] == "failed", "it would have succeeded, and redriven nothing"
    assert spark.calls.get("redrive") is None
