"""The events of the sink's asset: each offset that the sink holds is announced, whichever run wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from deltalake import write_deltalake
from tests.airflow.conftest import FakeSpark, states

from sluice.facts import ChangedColumns
from sluice.ledger import Ledger
from sluice.ledger.events import RunClosed, RunPlanned, batch_committed
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_airflow.operators import account as module

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

RUN = "run"
TAX = {"column": "tax", "type": "bigint"}


def committed_by(run: str, start: int, end: int, batch: int) -> None:
    ledger = Ledger.open()
    with ledger.acquire("flights", run) as lease:
        ledger.record(lease, RunPlanned(kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}))
        part = RangeAccount(OffsetRange("flights", 0, start, end), Counts(written=end - start))
        ledger.record(lease, *batch_committed(1, batch, [part], facts=[ChangedColumns.from_dict([TAX])]))
        ledger.record(lease, RunClosed(state="failed", verdict=None))


@pytest.mark.long
def test_account_announces_offsets_of_failed_runs_with_the_next_event(
    dag: DAG, spark: FakeSpark, events: Any, capfd: Any
) -> None:
    spark.plan(RUN, written=[12], verdict="failed", judgement={"results": []})
    failed = dag.test(logical_date=None)
    assert events() == []
    assert capfd.readouterr().out.count("in all: 12 planned, 12 written") == 2, "by ingest and by account"
    committed_by("died", 12, 20, 1)
    spark.plan(RUN, verdict="empty")
    run = dag.test(logical_date=None)
    ((uri, event),) = events()
    assert (uri, event["ranges"]) == ("x-sluice://flights", [["flights", 0, 0, 20]])
    assert (event["run"], event["written"], event["verdict"]) == (run.run_id, 0, "empty")
    assert event["runs"] == [
        {"run": failed.run_id, "verdict": "failed", "written": 12},
        {"run": "died", "verdict": None, "written": 8},
    ]
    assert (event["version"], event["evolved"]) == (None, [TAX]), "there is no table here"
    dag.test(logical_date=None)
    assert len(events()) == 1, "each is announced once"


def test_account_sends_the_event_again_after_a_death_before_the_note(
    dag: DAG, spark: FakeSpark, events: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        write_deltalake(str(home / "flights"), pa.table({"a": [1]}), mode="append")
    with monkeypatch.context() as dying:
        dying.setattr(module.AccountOperator, "note", dies)
        spark.plan(RUN, written=[12], verdict="passed")
        with pytest.raises(KeyboardInterrupt):
            dag.test(logical_date=None)
    spark.plan(RUN, verdict="empty")
    dag.test(logical_date=None)
    dag.test(logical_date=None)
    sent = [(extra["ranges"], extra["version"]) for _, extra in events()]
    assert sent == [([["flights", 0, 0, 12]], 2)] * 2
    noted = [e["payload"] for e in Ledger.open().events("flights") if e["type"] == "Announced"]
    assert noted == [{"upto": [[1, 0]], "version": 2}]


def test_account_sends_nothing_and_forgets_nothing_while_the_table_cannot_be_read(
    dag: DAG, spark: FakeSpark, events: Any, home: Path
) -> None:
    log = home / "flights" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{")
    spark.plan(RUN, written=[12], verdict="passed")
    dag.get_task("account").retries = 0
    assert states(dag.test(logical_date=None))["account"] == "failed"
    assert events() == []
    (log / "00000000000000000000.json").unlink()
    log.rmdir()
    spark.plan(RUN, verdict="empty")
    dag.test(logical_date=None)
    assert [extra["ranges"] for _, extra in events()] == [[["flights", 0, 0, 12]]]


def test_account_names_the_task_that_failed_and_not_those_that_did_not_run(context: Any) -> None:
    committed_by(RUN, 0, 5, 0)
    task = module.AccountOperator(task_id="t", pipeline="flights", name="flights", run_id=RUN)
    task._upstream = lambda _: {"ingest": "failed", "validate": "upstream_failed"}
    with pytest.raises(AirflowFailException, match=r"^ingest failed: "):
        task.execute(context())


def test_account_keeps_the_callbacks_of_its_dag() -> None:
    def mine(_: Any) -> None: ...

    task = module.AccountOperator(task_id="t", pipeline="flights", name="flights", on_success_callback=mine)
    assert task.on_success_callback[0] is mine
    with DAG("d", schedule=None, default_args={"on_success_callback": [mine]}):
        task = module.AccountOperator(task_id="t", pipeline="flights", name="flights")
    assert mine in task.on_success_callback
    assert len(task.on_success_callback) == 2
