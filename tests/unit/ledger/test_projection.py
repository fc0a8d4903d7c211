"""Derived tables: made from events, and rebuilt from them."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.ledger.conftest import commit, derived, plan, split

from sluice.ledger import REDRIVEN, Ledger, schema
from sluice.ledger.store import open_engine
from sluice.ranges import LostRange, OffsetRange, Times
from sluice.recovery import Route


def test_verdict_does_not_cover_rows_of_a_later_attempt(ledger: Ledger) -> None:
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 4))
        ledger.judged(lease, "p", "r1", verdict="passed", judgement={"rows": 4})
        ledger.run_closed(lease, state="done", verdict="passed")
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 1, split(4, 9))
        ledger.run_closed(lease, state="failed", error={"what": "died before it was judged"})
    row = ledger.run("p", "r1")
    assert (row.verdict, row.judgement) == (None, None)
    assert ledger.unjudged("p", "live") == ["r1"]


def test_batch_that_is_recorded_twice_counts_once(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 4), split(0, 4, 1))
        once = derived(ledger_url)["sluice_account"]
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[split(0, 4), split(0, 4, 1)])
        assert derived(ledger_url)["sluice_account"] == once
        assert ledger.account("p", "r1")["planned"] == 8
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[])
        assert ledger.last_batch("p", 1).batch == 1


def test_derived_tables_are_rebuilt_from_events(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "a") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 3, written=2, absent=1))
        commit(ledger, lease, 0, split(0, 3, written=2, absent=1))
        ledger.batch_started(lease, epoch=1, batch=1, ranges=[])
    with ledger.acquire("p", "b") as lease:
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[split(3, 9)], run_id="a")
        ledger.run_closed(lease, state="abandoned", run_id="a")
        plan(ledger, lease)
        plan(ledger, lease)
        ledger.run_closed(lease, state="failed", seconds=2.0, error={"type": "SinkError"})
    with ledger.acquire("q", "c") as lease:
        plan(ledger, lease, ids={})
        ledger.epoch_opened(lease, epoch=2, route=Route.LOG, positions={"t": {0: 4, 11: 2}})
        ledger.degraded(lease, "less than promised")
        segment = {"path": "batches/e2-000000-x/part", "records": 5, "length": 100}
        ledger.segment_sealed(lease, epoch=2, batch=0, segments=[segment])
        lost = LostRange(OffsetRange("t", 0, 4, 9), "poison", {"offset": 4, "value": "x"})
        ledger.batch_committed(lease, epoch=2, batch=0, accounts=[split(4, 9, lost=5)], lost=[lost])
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[split(5, 7)], redriven="lost")
        left = {"epoch": 2, "batch": 0, "segments": 0, "records": 0, "bytes": 0}
        ledger.segments_cleaned(lease, {"batches": [left]})
        ledger.interval_resolved(
            lease, "2013-01-01T00:00:00Z/2013-02-01T00:00:00Z", ranges=[OffsetRange("t", 0, 4, 9)], whole=True,
            topic_ids={"t": "id"},
        )  # fmt: skip
        ledger.batch_committed(
            lease, epoch=-1, batch=0, accounts=[split(4, 9)], replaced={OffsetRange("t", 0, 4, 9): (3, 1)}
        )
        known = Times(OffsetRange("t", 0, 9, 12), 1356998400000, 1356998400007)
        seen = replace(split(9, 14), times=(known, Times(OffsetRange("t", 0, 12, 14), 5, 6)))
        ledger.batch_committed(lease, epoch=2, batch=1, accounts=[seen])
        ledger.times_found(lease, [known, Times.none(OffsetRange("t", 1, 0, 3))])
        assert ledger.times("q") == [*seen.times, Times.none(OffsetRange("t", 1, 0, 3))]
        ledger.judged(lease, "q", "c", verdict="empty", judgement={})
        ledger.run_closed(lease, state="done")
    before = derived(ledger_url)
    assert all(before.values())
    count = ledger.rebuild()
    assert derived(ledger_url) == before
    assert count == len(ledger.events("p")) + len(ledger.events("q"))

    engine = open_engine(ledger_url)
    with engine.begin() as connection:
        for table in schema.DERIVED:
            connection.execute(table.delete())
    assert not any(derived(ledger_url).values())
    ledger.rebuild()
    assert derived(ledger_url) == before


def test_event_times_replace_those_of_before(ledger_url: str) -> None:
    ledger, first, other = Ledger.open(ledger_url), OffsetRange("t", 0, 0, 5), OffsetRange("t", 0, 5, 9)
    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        ledger.times_found(lease, [])
        ledger.times_found(lease, [Times(first, 1, 2), Times(other, 3, 4), Times(first, 5, 6)])
        assert ledger.times("p") == [Times(first, 5, 6), Times(other, 3, 4)]
        ledger.times_found(lease, [Times(other, 7, 8)])
        assert ledger.times("p") == [Times(first, 5, 6), Times(other, 7, 8)]


def test_lost_ranges_are_closed_piece_by_piece(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)

    def lost(state: str | None = "open") -> list[tuple[int, int, str]]:
        return [(r.range.start, r.range.end, r.state) for r in ledger.lost("p", state=state)]

    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        items = [LostRange(OffsetRange("t", 0, 0, 10), "gone"), LostRange(OffsetRange("t", 1, 3, 4), "poison")]
        accounts = [split(0, 12, written=2, lost=10), split(0, 4, 1, written=3, lost=1)]
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=accounts, lost=items)
        assert lost() == [(0, 10, "open"), (3, 4, "open")]
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[split(4, 6)], redriven="lost")
        assert lost() == [(0, 4, "open"), (6, 10, "open"), (3, 4, "open")]
        assert lost("redriven") == [(4, 6, "redriven")]
        # the same facts again, as after a crash: nothing is opened or closed again
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=accounts, lost=items)
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[split(4, 6)], redriven="lost")
        assert lost() == [(0, 4, "open"), (6, 10, "open"), (3, 4, "open")]
    assert [r.range.start for r in ledger.lost("p", run_id="r")] == [0, 6, 3]
    assert ledger.lost("p", run_id="other") == []
    assert {r.redriven_by for r in ledger.lost("p", state="redriven")} == {"r"}
    assert [(e.account, e.of) for e in ledger.entries("p") if e.epoch == REDRIVEN] == [(split(4, 6), "lost")]
    assert sum(a.counts.lost for a in ledger.accounts("p")) == 11, "redriven offsets are no part of the live account"
