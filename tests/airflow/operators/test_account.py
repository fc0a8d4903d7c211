"""Asset events: every offset that the sink holds is told of, whatever became of the run that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from tests.airflow.conftest import FakeSpark

from sluice.ledger import Ledger
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_airflow.operators import account as module

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


TAX = {"column": "tax", "type": "bigint"}


def events() -> list[dict[str, Any]]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return [e.extra for e in session.scalars(select(AssetEvent).order_by(AssetEvent.id)) if "ranges" in e.extra]


def committed_by(run: str, start: int, end: int, batch: int, verdict: str | None = None) -> None:
    ledger = Ledger.open()
    with ledger.acquire("flights", run) as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        part = RangeAccount(OffsetRange("flights", 0, start, end), Counts(written=end - start))
        ledger.batch_committed(lease, epoch=1, batch=batch, accounts=[part], evolved=[TAX])
        ledger.run_closed(lease, state="failed", verdict=verdict)


def test_the_next_event_tells_of_what_failed_runs_committed(dag: DAG, spark: FakeSpark) -> None:
    before = len(events())
    spark.plan("bounded_run.py", written=[12], verdict="failed", judgement={"results": []})
    failed = dag.test(logical_date=None)
    assert len(events()) == before
    committed_by("died", 12, 20, 1)
    spark.plan("bounded_run.py", verdict="empty")
    run = dag.test(logical_date=None)
    (event,) = events()[before:]
    assert event["ranges"] == [["flights", 0, 0, 20]]
    assert (event["run"], event["written"], event["verdict"]) == (run.run_id, 0, "empty")
    assert event["runs"] == [
        {"run": failed.run_id, "verdict": "failed", "written": 12},
        {"run": "died", "verdict": None, "written": 8},
    ]
    assert event["version"] is None, "there is no table here"
    assert event["evolved"] == [TAX]
    dag.test(logical_date=None)
    assert len(events()) == before + 1, "each is told of once"


def test_a_task_that_dies_between_the_event_and_the_note_sends_it_again(
    dag: DAG, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(events())

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(module.AccountOperator, "note", dies)
        spark.plan("bounded_run.py", written=[12], verdict="passed")
        with pytest.raises(KeyboardInterrupt):
            dag.test(logical_date=None)
    spark.plan("bounded_run.py", verdict="empty")
    dag.test(logical_date=None)
    dag.test(logical_date=None)
    assert [e["ranges"] for e in events()[before:]] == [[["flights", 0, 0, 12]]] * 2


def test_a_table_that_cannot_be_read_sends_nothing_and_forgets_nothing(dag: DAG, spark: FakeSpark, home: Path) -> None:
    before = len(events())
    log = home / "flights" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{")
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    dag.get_task("account").retries = 0
    assert str(dag.test(logical_date=None).state) == "failed"
    assert len(events()) == before
    (log / "00000000000000000000.json").unlink()
    log.rmdir()
    spark.plan("bounded_run.py", verdict="empty")
    dag.test(logical_date=None)
    assert [e["ranges"] for e in events()[before:]] == [[["flights", 0, 0, 12]]]


def test_the_event_names_the_version_of_the_table(dag: DAG, spark: FakeSpark, home: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    before = len(events())
    for _ in range(3):
        write_deltalake(str(home / "flights"), pa.table({"a": [1]}), mode="append")
    spark.plan("bounded_run.py", written=[12], verdict="passed")
    dag.test(logical_date=None)
    assert [e["version"] for e in events()[before:]] == [2]
    told = [e for e in Ledger.open().events("flights") if e["type"] == "Announced"]
    assert [e["payload"] for e in told] == [{"upto": [[1, 0]], "version": 2}]


def test_callbacks_of_ones_own_stay() -> None:
    def mine(_: Any) -> None: ...

    task = module.AccountOperator(task_id="t", pipeline="flights", name="flights", on_success_callback=mine)
    assert task.on_success_callback[0] is mine
    with DAG("d", schedule=None, default_args={"on_success_callback": [mine]}):
        task = module.AccountOperator(task_id="t", pipeline="flights", name="flights")
    assert mine in task.on_success_callback
    assert len(task.on_success_callback) == 2
