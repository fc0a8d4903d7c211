"""Reconciliation of ledger, checkpoint, log and sink before a run: repairs and refusals."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from deltalake import DeltaTable
from tests.fixtures.books import span, split
from tests.fixtures.checkpoints import written
from tests.fixtures.deltas import committed
from tests.fixtures.ledgers import attempt
from tests.fixtures.parquet import stage
from tests.fixtures.pipelines import modelled
from tests.unit.spark.batch.conftest import refuse
from tests.unit.spark.sinks.delta.conftest import SCHEMA, rows

from sluice.delta.names import interval_app_id
from sluice.errors import CheckpointError
from sluice.home import Home
from sluice.ledger import Epoch, Ledger
from sluice.ledger.events import batch_committed
from sluice.ranges import Counts, RangeAccount
from sluice.recovery import Route
from sluice_spark.runs import reconcile as reconciling
from sluice_spark.runs.epoch_end import HANDOVER
from sluice_spark.runs.reconcile import half_done, reconcile, replace_quarantined, replaced_in
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, Staged, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sources.base import RECORD_SCHEMA


def test_half_done_intervals_are_found_by_asking_the_table_only_about_unfinished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    keys = [f"2013-01-0{n}/2013-01-0{n + 1}" for n in range(1, 9)]
    for key in keys:
        with ledger.acquire("p", f"run {key}", scope=key) as lease:
            number = ledger.interval_resolved(lease, key, ranges=[span(0, 4)], whole=True, topic_ids={})
            if key != keys[4]:
                ledger.record(lease, *batch_committed(-number, 0, [split(0, 4)]))
    committed(tmp_path / "t", *((interval_app_id("p", key), 0) for key in keys))
    asked = mock.Mock(side_effect=DeltaTable.transaction_version)
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda table, app: asked(table, app))
    sink = DeltaSink(str(tmp_path / "t"), "app")
    assert [known.interval for known in half_done(ledger, "p", sink)] == [keys[4]]
    assert [call.args[1] for call in asked.call_args_list] == [interval_app_id("p", keys[4])]
    (tmp_path / "t" / "_delta_log" / "_last_checkpoint").write_text('{"version": 1, "parts": 2}')
    assert [known.interval for known in half_done(ledger, "p", sink)] == [keys[4]]


class Pipe:
    """A pipeline ``p`` whose checkpoint, tables and log are written by hand; batch n is [10n, 10n + 10) of ``t-0``."""

    def __init__(self, root: Path, route: Route = Route.DIRECT) -> None:
        self.home = Home(str(root))
        self.ledger = Ledger.open(f"sqlite:///{root}/ledger.db")
        spec = modelled()
        self.tables = Tables.of(spec, self.home, Epoch(1, route, None))
        self.redriven = Tables.redriven(spec, self.home)

    def checkpoint(self, planned: int, done: int) -> None:
        """Write Spark's record of that many batches."""
        ends = {batch: {"t": {"0": 10 * batch + 10}} for batch in range(planned)}
        written(Path(self.home.checkpoint("p", 1)), ends, range(done))

    def account(self, batch: int, refused: int = 0) -> RangeAccount:
        return split(10 * batch, 10 * batch + 10, written=10 - refused, quarantined=refused)

    def commit(self, batch: int, refused: int = 0) -> Staged:
        """Commit a batch to the sink as the driver of run ``dead`` does; return what it staged for the quarantine."""
        first, end = 10 * batch, 10 * batch + 10
        aside = NOTHING
        if refused:
            aside = refuse(
                Path(self.tables.quarantine.path), batch, [(0, offset) for offset in range(end - refused, end)]
            )
        note = {
            "pipeline": "p", "run": "dead", "accounts": [self.account(batch, refused).as_dict()], "lost": [],
            "refused": aside.folder or None,
        }  # fmt: skip
        staged = stage(self.tables.sink.path, batch, rows(first, end - refused))
        assert self.tables.sink.commit(staged, SCHEMA, batch, note)
        return aside

    def enter(self, batch: int) -> None:
        """Enter a batch into the ledger."""
        with self.ledger.acquire("p", "dead") as lease:
            self.ledger.record(lease, *batch_committed(1, batch, [self.account(batch)]))

    def stand(self, planned: int, done: int, held: int, known: int) -> None:
        """Let the checkpoint have planned and done, the sink hold, and the ledger know that many batches."""
        self.checkpoint(planned, done)
        for batch in range(held):
            self.commit(batch)
        for batch in range(known):
            self.enter(batch)

    def reconcile(self, *, forgo: bool = False) -> None:
        with self.ledger.acquire("p", "next") as lease:
            reconcile(self.ledger, lease, self.tables, self.redriven, forgo=forgo)

    def quarantined(self) -> list[int]:
        if self.tables.quarantine.table() is None:
            return []
        return sorted(DeltaTable(self.tables.quarantine.path).to_pyarrow_table()["_offset"].to_pylist())


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


def test_reconcile_changes_nothing_where_all_agree(pipe: Pipe) -> None:
    pipe.reconcile()
    assert pipe.ledger.events("p") == [], "before the first run"
    pipe.stand(2, 2, held=2, known=2)
    before = pipe.ledger.events("p")
    pipe.reconcile()
    assert pipe.ledger.events("p") == before


def test_reconcile_enters_unknown_batches_under_the_run_that_wrote_them(pipe: Pipe) -> None:
    with attempt(pipe.ledger, "dead"):
        pass
    pipe.stand(3, 2, held=2, known=1)
    pipe.commit(2, refused=3)
    assert pipe.quarantined() == [], "the driver died before it"
    pipe.reconcile()
    assert pipe.quarantined() == [27, 28, 29]
    assert pipe.ledger.offsets.accounts("p") == [pipe.account(0), pipe.account(1), pipe.account(2, refused=3)]
    assert pipe.ledger.runs.known("p", "dead").state == "abandoned"
    assert pipe.ledger.runs.account("p", "dead")["quarantined"] == 3
    events = pipe.ledger.events("p")
    pipe.reconcile()
    assert (pipe.ledger.events("p"), pipe.quarantined()) == (events, [27, 28, 29]), "twice is as once"


def test_reconcile_sweeps_files_of_a_dead_attempt_and_leaves_those_of_the_batch(pipe: Pipe) -> None:
    pipe.checkpoint(1, 0)
    orphan = Path(pipe.tables.sink.path, "batches", "p-e1-000000-ffffffff")
    pipe.commit(0)
    orphan.mkdir()
    (orphan / "part.parquet").write_bytes(b"of an attempt that died")
    pipe.reconcile()
    assert not orphan.exists()
    assert DeltaTable(pipe.tables.sink.path).to_pyarrow_table().num_rows == 10


@pytest.mark.parametrize(
    ("planned", "done", "held", "known", "says"),
    [
        (2, 1, 1, 2, "batch 1 .* sink .* 0"),
        (1, 1, 2, 2, "batch 1, .* checkpoint .* 0"),
        (0, 0, 1, 1, "batch 0, .* checkpoint .* -1"),
        (2, 2, 1, 1, "batch 1, .* sink .* 0"),
    ],
    ids=["restored-sink", "restored-checkpoint", "no-checkpoint", "missing-commit"],
)
def test_reconcile_refuses_a_state_that_no_crash_leaves_and_changes_nothing(
    pipe: Pipe, planned: int, done: int, held: int, known: int, says: str
) -> None:
    pipe.stand(planned, done, held, known)
    before = pipe.ledger.events("p")
    with pytest.raises(CheckpointError, match=says) as caught:
        pipe.reconcile()
    assert caught.value.state
    assert pipe.ledger.events("p") == before


def test_reconcile_refuses_the_checkpoint_of_another_pipeline_by_where_its_batches_end(pipe: Pipe) -> None:
    pipe.stand(1, 1, held=1, known=1)
    Path(pipe.home.checkpoint("p", 1), "offsets/0").write_text('v1\n{}\n{"t": {"0": 9}}')
    with pytest.raises(CheckpointError, match=r"t-0 ends at 10 .* 9 in the checkpoint"):
        pipe.reconcile()


def test_reconcile_loses_refused_records_that_are_gone_only_with_forgo_and_once(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe.checkpoint(1, 0)
    for file in pipe.commit(0, refused=2).files:
        Path(pipe.tables.quarantine.path, file.path).unlink()
    with pytest.raises(TakenBackError, match="2 records"):
        pipe.reconcile()
    with monkeypatch.context() as killed:
        killed.setattr(reconciling, "point", mock.Mock(side_effect=KeyboardInterrupt))  # behind the quarantine
        with pytest.raises(KeyboardInterrupt):
            pipe.reconcile(forgo=True)
    assert pipe.ledger.offsets.accounts("p") == []
    pipe.reconcile(forgo=True)
    (account,) = pipe.ledger.offsets.accounts("p")
    assert account.counts == Counts(written=8, lost=2)
    assert [row.range for row in pipe.ledger.offsets.lost("p")] == [span(8, 10)]
    assert any("2 were removed" in str(event) for event in pipe.ledger.events("p"))


def test_reconcile_names_a_quarantine_whose_history_has_expired(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = refuse(Path(pipe.tables.quarantine.path), 0, [(0, 8)])
    assert replace_quarantined(pipe.tables, Slice([span(0, 10)]), aside, 0, "r") == {}
    assert replace_quarantined(pipe.tables, Slice([span(0, 10)]), NOTHING, 0, "r") == {}, "again"
    monkeypatch.setattr(DeltaSink, "notes", lambda *_, **__: iter(()))
    with pytest.raises(CheckpointError, match="has expired"):
        replace_quarantined(pipe.tables, Slice([span(0, 10)]), NOTHING, 0, "r")


def test_reconcile_opens_the_epoch_after_one_that_a_dead_driver_closed(pipe: Pipe) -> None:
    pipe.stand(1, 1, held=1, known=1)
    to = {"epoch": 2, "lineage": "log", "positions": {"t": {"0": 10}}}
    assert pipe.tables.sink.commit(NOTHING, SCHEMA, 1, {"run": "dead", "accounts": [], HANDOVER: to})
    pipe.reconcile()
    assert pipe.ledger.offsets.epoch("p") == Epoch(2, Route.LOG, {"t": {0: 10}})
    assert pipe.ledger.offsets.accounts("p") == [pipe.account(0)]


def sealed(pipe: Pipe, batch: int) -> None:
    note = {"run": "dead", "segments": [{"path": f"batches/e1-{batch:06d}-x/part", "records": 10, "length": 9}]}
    assert pipe.tables.log_table.commit(NOTHING, RECORD_SCHEMA, batch, note)


def test_reconcile_enters_batches_of_the_log_whether_the_sink_has_them_or_not(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path, Route.LOG)
    for batch in (0, 1):
        sealed(pipe, batch)
    pipe.stand(2, 1, held=1, known=0)
    pipe.reconcile()
    assert pipe.ledger.offsets.last_sealed("p", 1) == 1
    assert pipe.ledger.offsets.accounts("p") == [pipe.account(0)]


def test_reconcile_refuses_a_sink_that_is_ahead_of_the_log(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path, Route.LOG)
    sealed(pipe, 0)
    pipe.stand(2, 1, held=2, known=0)
    with pytest.raises(CheckpointError, match=r"batch 1, .* log .* 0"):
        pipe.reconcile()
    assert pipe.ledger.offsets.accounts("p") == []


@pytest.mark.parametrize(
    ("counts", "moved", "standing", "taken"),
    [
        (Counts(written=4, filtered=2), 0, 4, 4),  # the same as live runs counted
        (Counts(written=5, filtered=1), 1, 4, 4),  # one was in the quarantine
        (Counts(written=3, filtered=2, quarantined=1), 0, 4, 4),  # one is refused now
        (Counts(written=3, filtered=2, quarantined=1), 1, 3, 3),  # again
        (Counts(filtered=5, quarantined=1), 0, 0, 0),  # it came too late before, and is refused now
    ],
)
def test_interval_of_windows_replaces_counts_down_to_0(counts: Counts, moved: int, standing: int, taken: int) -> None:
    account, key = RangeAccount(span(0, 6), counts), ("t", 0)
    assert replaced_in([account], {}, {key: moved}, {key: standing}) == {account.range: (taken, moved)}
    assert standing + counts.written - taken >= 0
    assert replaced_in([account], {key: 2}, {key: moved}) == {account.range: (2, moved)}
