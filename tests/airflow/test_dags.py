"""The project's own DAGs, and whole runs of one, with and without a logical date."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, timezone
from tests.airflow.conftest import PROJECT, SECRET, FakeSpark

from sluice.connections import variable_of
from sluice.errors import ExitCode, SourceUnreachableError
from sluice.lag import Backlog, PartitionLag
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice.run.decision import accept
from sluice_airflow.factory import build_dag
from sluice_airflow.group import SluiceTaskGroup
from sluice_airflow.sensors import kafka_lag as sensor_module
from sluice_airflow.triggers import kafka_lag as trigger_module

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

DAGS = PROJECT / "dags"


def test_every_dag_of_the_project_is_sound() -> None:
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert set(bag.dags) == {"flights", "flights_monthly", "recovery_side_by_side"}
    assert bag.dags["flights"].task_ids == ["wait_for_lag", "ingest", "validate", "account"]
    for dag in bag.dags.values():
        assert dag.max_active_runs == 1
        assert not dag.catchup


def test_the_strategies_stand_side_by_side_in_one_dag() -> None:
    dag = DagBag(DAGS).dags["recovery_side_by_side"]
    groups = [group for group in dag.task_group.children.values() if isinstance(group, SluiceTaskGroup)]
    assert len(dag.tasks) == 4 * len(groups), "each has sensor, verdict and asset event"
    asked = {group.group_id: (Recovery(group.ingest.recovery), load(group.ingest.pipeline)) for group in groups}
    assert sorted(strategy for strategy, _ in asked.values()) == sorted(Recovery)
    for strategy, pipeline in asked.values():
        assert pipeline.kafka.topics == ["flights"]
        assert pipeline.recovery is strategy
    assert len({p.name for _, p in asked.values()} | {p.sink.delta.path for _, p in asked.values()}) == len(Recovery)


def test_each_table_of_the_example_has_a_verdict_and_an_event(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(events())
    full = Backlog("any", (PartitionLag("flights", 0, 0, 0, 12),))
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: full)
    dag = DagBag(DAGS).dags["recovery_side_by_side"]
    for task in (task for task in dag.tasks if hasattr(task, "_spark_binary")):
        task._spark_binary = spark.binary
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    found = states(dag.test(logical_date=None))
    assert (len(found), set(found.values())) == (4 * len(Recovery), {"success"})
    names = {load(task.pipeline).name for task in dag.tasks}
    assert {event["uri"] for event in events()[before:]} == {f"x-sluice://{name}" for name in names}


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def dag(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> DAG:
    """The project's own DAG, with the fake spark-submit and a broker that has a little."""
    state = Backlog("flights", (PartitionLag("flights", 0, 0, 0, 12),))
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: state)
    dag = build_dag("flights")
    for task in ("ingest", "validate"):
        dag.get_task(task)._spark_binary = spark.binary
    return dag


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def events() -> list[dict[str, Any]]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(AssetEvent).order_by(AssetEvent.id)).all()
        return [{"uri": e.asset.uri, "extra": e.extra} for e in found]


@pytest.mark.parametrize("dated", [True, False])
def test_a_run_with_and_without_a_logical_date(dag: DAG, spark: FakeSpark, dated: bool, capfd: Any) -> None:
    before = len(events())
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    when = timezone.datetime(2026, 11, 2, 5) if dated else None
    run = dag.test(logical_date=when, run_after=timezone.utcnow())
    assert states(run) == dict.fromkeys(["wait_for_lag", "ingest", "validate", "account"], "success")
    argv = spark.call("bounded_run.py")["argv"]
    assert argv[argv.index("--run") + 1] == run.run_id
    assert run.logical_date == when
    (event,) = events()[before:]
    assert event["uri"] == "x-sluice://flights"
    assert event["extra"]["ranges"] == [["flights", 0, 0, 12]]
    assert (event["extra"]["written"], event["extra"]["verdict"]) == (12, "passed")
    captured = capfd.readouterr()
    assert "in all: 12 planned, 12 written" in captured.out
    assert SECRET not in captured.out + captured.err + json.dumps(event)


@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ({"file": {"path": "inbox", "format": "json"}}, None),
        ({"queue": {"connection": "redis_default", "kind": "redis_streams", "streams": ["s"]}}, "redis_default"),
    ],
)
def test_a_source_that_has_no_lag_is_not_waited_for(
    spark: FakeSpark,
    dags_in: Callable[[Path], dict[str, DAG]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, Any],
    needed: str | None,
    dated: bool,
) -> None:
    connection = {"conn_type": "redis", "host": "redis", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_DEFAULT", json.dumps(connection))
    spec = {"pipeline": "demo", "source": source, "decode": {"text": {}}, "sink": {"delta": {"path": "demo"}}}
    (tmp_path / "demo.yaml").write_text(json.dumps(spec))
    (tmp_path / "dags").mkdir()
    made = f"from sluice_airflow.factory import build_dag\n\ndag = build_dag({str(tmp_path / 'demo.yaml')!r})\n"
    (tmp_path / "dags" / "demo.py").write_text(made)
    dag = dags_in(tmp_path / "dags")["demo"]
    for task in ("ingest", "validate"):
        dag.get_task(task)._spark_binary = spark.binary
        dag.get_task(task).retries = 0
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    run = dag.test(logical_date=timezone.datetime(2026, 11, 2, 5) if dated else None, run_after=timezone.utcnow())
    assert states(run) == dict.fromkeys(["ingest", "validate", "account"], "success")
    call = spark.call("bounded_run.py")
    assert call is not None
    if needed is not None:
        assert json.loads(call["env"][variable_of(needed)])["password"] == SECRET
    assert SECRET not in json.dumps(call["argv"])


def test_an_empty_run_succeeds_and_emits_nothing(dag: DAG, spark: FakeSpark) -> None:
    before = len(events())
    spark.plan("bounded_run.py", verdict="empty")
    run = dag.test(logical_date=None)
    assert set(states(run).values()) == {"success"}
    assert len(events()) == before


def test_a_failed_verdict_fails_validate_only_and_emits_nothing(dag: DAG, spark: FakeSpark) -> None:
    before = len(events())
    spark.plan("bounded_run.py", written=[12], verdict="failed", judgement={"results": []})
    run = dag.test(logical_date=None)
    assert states(run) == {
        "wait_for_lag": "success", "ingest": "success", "validate": "failed", "account": "failed",
    }  # fmt: skip
    assert len(events()) == before


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_behind_a_verdict_that_holds_runs_are_skipped_until_it_is_accepted(
    dag: DAG, spark: FakeSpark, recovery: str, tmp_path: Path
) -> None:
    """Also one that landed records and so is in the ledger: it announces nothing of the rows that are held."""
    before = len(events())
    file = tmp_path / "flights.yaml"
    spec = yaml.safe_load(load("flights").file.read_text())
    spec["quality"] = {"on_failed": "hold"}
    file.write_text(yaml.safe_dump({**spec, "recovery": recovery}))
    for task in ("ingest", "validate", "account"):
        dag.get_task(task).pipeline = str(file)
    spark.plan("bounded_run.py", written=[12], verdict="failed", judgement={"results": []})
    bad = dag.test(logical_date=None)
    assert states(bad)["validate"] == "failed"
    spark.plan("bounded_run.py", code=ExitCode.HELD, say=["sluice: error: pipeline 'flights' is held"])
    run = dag.test(logical_date=None, run_conf={"recovery": recovery})
    assert states(run) == {
        "wait_for_lag": "success", "ingest": "skipped", "validate": "skipped", "account": "skipped",
    }  # fmt: skip
    assert (Ledger.open().run("flights", run.run_id) is None) is (recovery == "replay")
    assert len(events()) == before
    accept(Ledger.open(), "flights", bad.run_id, reason="known gap")
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    assert set(states(dag.test(logical_date=None)).values()) == {"success"}
    assert len(events()) == before + 1


def test_validate_false_skips_the_verdict_and_still_accounts(dag: DAG, spark: FakeSpark) -> None:
    before = len(events())
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    run = dag.test(logical_date=None, run_conf={"validate": False, "max_records_per_batch": 9})
    assert states(run) == {
        "wait_for_lag": "success", "ingest": "success", "validate": "skipped", "account": "success",
    }  # fmt: skip
    argv = spark.call("bounded_run.py")["argv"]
    assert "--no-validate" in argv
    assert argv[argv.index("--max-records-per-batch") + 1] == "9"
    assert len(events()) == before + 1


def test_a_run_of_an_interval_waits_for_no_lag_and_has_a_run_of_its_own(
    dag: DAG, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the lag is none of its business")

    monkeypatch.setattr(sensor_module, "look", never)
    before = len(events())
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    conf = {"mode": "interval", "start": "2013-03-01T00:00:00Z", "end": "2013-04-01T00:00:00Z", "reason": "it's wrong"}
    run = dag.test(logical_date=None, run_conf=conf)
    assert set(states(run).values()) == {"success"}
    argv = spark.call("bounded_run.py")["argv"]
    assert argv[argv.index("--run") + 1] == f"{run.run_id}__interval"
    assert argv[argv.index("--start") + 1 : argv.index("--start") + 4] == [
        "2013-03-01T00:00:00Z", "--end", "2013-04-01T00:00:00Z",
    ]  # fmt: skip
    assert "--reason=it's wrong" in argv
    assert len(events()) == before + 1


def test_params_that_contradict_each_other_end_the_run_at_once(dag: DAG, spark: FakeSpark) -> None:
    run = dag.test(logical_date=None, run_conf={"mode": "interval", "start": "2013-03-01T00:00:00Z"})
    (first,) = (ti for ti in run.get_task_instances() if ti.task_id == "wait_for_lag")
    assert (str(first.state), first.try_number) == ("failed", 1)
    assert spark.call("bounded_run.py") is None


def test_what_cannot_help_is_not_tried_again(dag: DAG, spark: FakeSpark) -> None:
    spark.plan("bounded_run.py", code=21, say=["sluice: error: offsets are gone"])
    run = dag.test(logical_date=None)
    (ingest,) = (ti for ti in run.get_task_instances() if ti.task_id == "ingest")
    assert (str(ingest.state), ingest.try_number, ingest.max_tries) == ("failed", 1, 3)
    assert Ledger.open().run("flights", run.run_id).attempts == 1


def test_idle_and_skip_skips_everything(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, dag: DAG) -> None:
    nothing = Backlog("flights", (PartitionLag("flights", 0, 12, 0, 12),))
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: nothing)
    dag.get_task("wait_for_lag").on_idle = "skip"
    run = dag.test(logical_date=None)
    assert set(states(run).values()) == {"skipped"}
    assert spark.call("bounded_run.py") is None


def test_a_broker_that_comes_back_lets_the_run_through(
    dag: DAG, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = Backlog("flights", (), error=SourceUnreachableError("no broker answers"))
    back = Backlog("flights", (PartitionLag("flights", 0, 0, 0, 12),))
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: down)
    monkeypatch.setattr(trigger_module, "look", lambda *_, **__: back)
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    assert set(states(dag.test(logical_date=None)).values()) == {"success"}


def test_airflows_plugin_loader_hides_no_package() -> None:
    # It imports each module below plugins/ under its bare file name: hooks/kafka.py as `kafka`, unless told not to.
    program = (
        "from airflow import plugins_manager; plugins, errors = plugins_manager._get_plugins();"
        "from kafka import errors as _, KafkaConsumer; assert not errors, errors"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
