"""Runs, batches and epochs in the ledger, and its derived tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.ledger.conftest import NASTY, commit, derived, plan, played, split

from sluice.audit import audit
from sluice.errors import ConfigError
from sluice.ledger import REDRIVEN, Epoch, Ledger, schema
from sluice.ledger.store import open_engine
from sluice.ranges import LostRange, OffsetRange, Times
from sluice.recovery import Route
from sluice.text import LONGEST_RUN, run_of_interval


def test_run_is_recorded_as_events_and_in_tables(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease, OffsetRange("t", 0, 0, 10))
        assert ledger.run("p", "r1").state == "open"
        commit(ledger, lease, 0, split(0, 6, written=3, filtered=1, quarantined=1, absent=1), split(0, 2, 1))
        commit(ledger, lease, 1, split(6, 10))
        ledger.judged(lease, "p", "r1", verdict="passed", judgement={"rows": 7, "names": ["ä", None]})
        ledger.run_closed(lease, state="done", seconds=1.5, verdict="passed")

    assert [e["type"] for e in ledger.events("p")] == [
        "RunPlanned", "BatchStarted", "BatchCommitted", "BatchStarted", "BatchCommitted", "Judged", "RunClosed",
    ]  # fmt: skip
    row = ledger.run("p", "r1")
    assert row is not None
    assert (row.state, row.attempts, row.seconds, row.verdict, row.epoch) == ("done", 1, 1.5, "passed", 1)
    assert row.judgement == {"rows": 7, "names": ["ä", None]}
    assert row.topic_ids == ledger.topic_ids("p") == {"t": "id-1"}
    assert ledger.account("p", "r1") == {
        "run": "r1", "recovery": "replay", "planned": 12, "written": 9, "filtered": 1, "quarantined": 1, "absent": 1,
        "lost": 0, "verdict": "passed", "seconds": 1.5,
    }  # fmt: skip
    last = ledger.last_batch("p", 1)
    assert last is not None
    assert (last.batch, last.run, last.state) == (1, "r1", "committed")
    assert ledger.accounts("p", batch=last) == [split(6, 10)]
    assert audit(ledger, "p").balanced


def test_text_that_no_database_stores_is_escaped(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    longest = "ü" * LONGEST_RUN
    for run in ("r", longest, run_of_interval(longest)):
        played(ledger, run, NASTY)
    row = ledger.run("p", "r")
    assert row is not None
    escaped = r"a\x00b\ud800c\udcffd"
    assert (row.reason, row.error) == (escaped, {"what": escaped, "frames": [escaped, [escaped]]})
    assert row.notes == [f"a note {escaped}"]
    ledger.rebuild()
    assert ledger.run("p", "r") == row
    assert {row.run for row in ledger.runs("p")} == {"r", longest, run_of_interval(longest)}


@pytest.mark.parametrize("run", ["", "r" * 251, "a\0b", "a\ud800", "a\nb"])
def test_run_id_that_cannot_be_stored_is_refused(ledger: Ledger, run: str) -> None:
    with pytest.raises(ConfigError, match="run id") as caught:
        ledger.acquire("p", run)
    str(caught.value).encode()
    assert ledger.events("p") == []


def test_added_columns_are_noted_with_the_run_that_wrote_them(ledger: Ledger) -> None:
    tax, city = {"column": "tax", "type": "bigint"}, {"column": "at.city", "type": "string"}
    with ledger.acquire("p", "dead") as lease:
        plan(ledger, lease)
    with ledger.acquire("p", "heir") as lease:
        plan(ledger, lease)
        for _ in range(2):  # a fact may be recorded again after a crash
            ledger.batch_committed(
                lease, epoch=1, batch=0, accounts=[split(0, 4)], evolved=[tax, city], run_id="dead"
            )  # fmt: skip
        commit(ledger, lease, 1, split(4, 8))
    assert ledger.account("p", "dead")["notes"] == ["columns added to the sink: tax bigint, at.city string"]
    assert "notes" not in ledger.account("p", "heir")
    assert ledger.evolved("p", ["dead", "heir"]) == [tax, city]
    assert ledger.evolved("p", ["heir"]) == ledger.evolved("p", []) == ledger.evolved("q", ["dead"]) == []


def test_windows_of_a_batch_count_once(ledger: Ledger) -> None:
    moved = {"rows": 3, "late": [["t", 0, 0, 6, 2]], "partly_late": 1, "latest": 700, "late_by": 100, "closed_to": 500}
    closing = {"rows": 4, "late": [], "partly_late": 0, "latest": None, "late_by": 500, "closed_to": 900}
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease, OffsetRange("t", 0, 0, 6))
        accounts = [split(0, 6, written=4, filtered=2)]
        for _ in range(2):  # as after a crash
            ledger.batch_committed(lease, epoch=1, batch=0, accounts=accounts, windows=moved)
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[], windows=closing)
    assert ledger.event_times("p", "as now") == []
    moved |= {"timing": "as now", "times": [["t", 0, 0, 6, 600, 700], ["t", 1, 0, 2, None, None]]}
    with ledger.acquire("p", "r1") as lease:
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=accounts, windows=moved)
    known = [Times(OffsetRange("t", 0, 0, 6), 600, 700), Times.none(OffsetRange("t", 1, 0, 2))]
    assert ledger.event_times("p", "as now") == known
    assert ledger.event_times("p", "as before") == []
    for batch in (0, 1):  # as a run of an interval that is cleared
        with ledger.acquire("p", "r3", scope="of march") as lease:
            ledger.batch_committed(
                lease, epoch=-1, batch=batch, accounts=[], windows={**closing, "late_by": 0, "replaced": 4 - batch}
            )
    again = {"rows": 4, "late": 0, "partly_late": 0, "late_by": None, "closed_to": 900, "replaced": 3}
    assert ledger.windows("p", "r3") == again
    wanted = {"rows": 7, "late": 2, "partly_late": 1, "late_by": 100, "closed_to": 900}
    assert ledger.windows("p", "r1") == ledger.account("p", "r1")["windows"] == wanted
    assert ledger.windows("p", "r2") == {}
    assert (ledger.latest_event_time("p", 1), ledger.latest_event_time("p", 2)) == (700, None)
    assert [ledger.latest_before("p", epoch, since=since) for epoch, since in ((1, 1), (2, 1), (3, 2))] == [
        None,
        700,
        None,
    ]
    assert [ledger.closed_before("p", epoch, since=since) for epoch, since in ((1, 1), (2, 1), (3, 2))] == [0, 900, 0]
    with ledger.acquire("p", "r4") as lease:
        ledger.batch_committed(
            lease, epoch=2, batch=0, accounts=[], windows={**closing, "former": [["t", 0, 6, 9, 2]], "former_to": 3600}
        )
    assert {"former": 2, "former_to": 3600}.items() <= ledger.windows("p", "r4").items()
    assert list(ledger.partition_times("p", 1)) == []  # an earlier version noted none
    with ledger.acquire("p", "r5") as lease:
        for batch, latest in ((1, 700), (2, 600)):
            partitions = {"at": batch, "latest": [["t", 0, latest], ["t", 1, 900]]}
            ledger.batch_committed(
                lease, epoch=2, batch=batch, accounts=[], windows={**closing, "partitions": partitions}
            )
    assert list(ledger.partition_times("p", 1)) == []
    assert list(ledger.partition_times("p", 2)) == [
        ("t", 0, 600, 2),
        ("t", 1, 900, 2),
        ("t", 0, 700, 1),
        ("t", 1, 900, 1),
    ]
    ledger.rebuild()
    assert ledger.last_batch("p", 1).batch == 1
    assert ledger.last_plan("p", 1) == [OffsetRange("t", 0, 0, 6)]
    assert ledger.last_plan("p", 2) == []
    assert audit(ledger, "p").balanced


def test_dedupe_of_a_batch_counts_once(ledger: Ledger) -> None:
    dropped = {"duplicates": [["t", 0, 0, 5, 2], ["t", 1, 0, 5, 1]], "late": [], "late_by": 0}
    late = {"duplicates": [], "late": [["t", 0, 5, 9, 3]], "late_by": 1000}
    nothing = {"duplicates": [], "late": [], "late_by": 2000}
    with ledger.acquire("p", "r1") as lease:
        for _ in range(2):
            ledger.batch_committed(lease, epoch=1, batch=0, accounts=[], dedupe=dropped)
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[], dedupe=late)
        ledger.batch_committed(lease, epoch=1, batch=2, accounts=[], dedupe=nothing)
    assert list(ledger.partition_times("p", 1)) == []
    with ledger.acquire("p", "r2") as lease:  # event times of a batch that dropped nothing
        partitions = {"partitions": {"at": 7, "latest": [["t", 0, 500]]}}
        ledger.batch_committed(lease, epoch=1, batch=3, accounts=[], dedupe={**nothing, **partitions})
        ledger.batch_committed(lease, epoch=2, batch=0, accounts=[], dedupe={**nothing, **partitions})
        ledger.batch_committed(lease, epoch=-1, batch=0, accounts=[], dedupe={**nothing, **partitions})
    assert list(ledger.partition_times("p", 2)) == [("t", 0, 500, 7)]
    assert ledger.dedupe("p", "r1") == {"duplicate": 3, "late": 3, "late_by": 1000}
    assert ledger.dedupe("p", "r2") == {}


def test_second_attempt_of_a_run_and_its_newest_plan(ledger: Ledger) -> None:
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        ledger.run_closed(lease, state="failed", error={"what": "broken"})
    first = ledger.run("p", "r1")
    with ledger.acquire("p", "b") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease, ids={"t": "id-2"})
    again = ledger.run("p", "r1")
    assert first is not None
    assert again is not None
    assert (first.state, first.error, first.attempts) == ("failed", {"what": "broken"}, 1)
    assert (again.state, again.error, again.closed_at, again.attempts) == ("open", None, None, 2)
    assert (again.opened_at, again.sequence) == (first.opened_at, first.sequence)
    assert ledger.topic_ids("p") == {"t": "id-2"}, "of the newest run that saw some"


def test_reconciled_batch_belongs_to_the_run_that_wrote_it(ledger: Ledger) -> None:
    with ledger.acquire("p", "a") as lease:
        plan(ledger, lease)
        ledger.batch_started(lease, epoch=1, batch=0, ranges=[])
    with ledger.acquire("p", "b") as lease:
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[split(0, 4)], run_id="a")
        ledger.run_closed(lease, state="abandoned", run_id="a")
        plan(ledger, lease)
    assert ledger.account("p", "a")["written"] == 4
    assert ledger.account("p", "b")["written"] == 0
    assert ledger.unjudged("p", "live") == ["a"]
    ledger.judged(None, "p", "a", verdict="passed", judgement={})
    assert ledger.unjudged("p", "live") == []
    with ledger.acquire("p", "c") as lease:  # a driver had died once more
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[split(4, 8)], run_id="a")
    assert ledger.unjudged("p", "live") == ["a"], "that batch was not judged with the others"


def test_runs_that_wrote_rows_wait_for_a_verdict(ledger: Ledger) -> None:
    """By their kind; also if they failed behind their rows, or only closed windows."""
    closing = {"late": [], "partly_late": 0, "latest": None, "late_by": 500, "closed_to": 900}
    rows = [split(0, 4)]
    for number, (run, kind, epoch, accounts, windows) in enumerate([
        ("interval", "interval", -1, rows, None),
        ("live", "live", 1, rows, None),
        ("closed nothing", "live", 1, [], {**closing, "rows": 0}),
        ("closed windows", "live", 1, [], {**closing, "rows": 4}),
        ("no batch", "live", 1, None, None),
    ]):  # fmt: skip
        with ledger.acquire("p", run) as lease:
            ledger.run_planned(lease, kind=kind, recovery="replay", epoch=epoch, ranges=[], topic_ids={})
            if accounts is not None:
                ledger.batch_committed(lease, epoch=epoch, batch=number, accounts=accounts, windows=windows)
            ledger.run_closed(lease, state="failed", error={"exit_code": 20})
    assert ledger.unjudged("p", "live") == ["live", "closed windows"]
    assert ledger.unjudged("p", "interval") == ["interval"]


def test_newest_epoch_and_newest_engine_count(ledger: Ledger) -> None:
    assert ledger.engine("p") is None
    with ledger.acquire("p", "r") as lease:
        ledger.epoch_opened(lease, epoch=1, route=Route.LOG, positions=None)
        assert ledger.epoch("p") == Epoch(1, Route.LOG, None)
        ledger.epoch_opened(lease, epoch=2, route=Route.DIRECT, positions={"t": {0: 5, 10: 7}})
        ledger.epoch_opened(lease, epoch=1, route=Route.DIRECT, positions=None)
    assert ledger.epoch("p") == Epoch(2, Route.DIRECT, {"t": {0: 5, 10: 7}})
    for run, engine in (("a", "arrow"), ("b", "spark"), ("c", None)):  # the last had no records
        with ledger.acquire("p", run) as lease:
            plan(ledger, lease, OffsetRange("t", 0, 0, 10))
            ledger.run_closed(lease, state="done", engine=engine)
    assert (ledger.engine("p"), ledger.engine("other")) == ("spark", None)


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
