"""Runs, batches and epochs in the ledger, and its derived tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.books import lost as loss
from tests.fixtures.ledgers import attempt
from tests.unit.ledger.conftest import NASTY, commit, derived, played, run, span, split

from sluice.audit import audit
from sluice.errors import ConfigError
from sluice.facts import ChangedColumns, Duplicates, Windows
from sluice.ledger import REDRIVEN, Epoch, Ledger, schema
from sluice.ledger.events import (
    BatchStarted,
    Degraded,
    EpochOpened,
    Judged,
    PipelineReset,
    Redriven,
    RunClosed,
    SegmentsCleaned,
    SegmentSealed,
    TimesFound,
    batch_committed,
)
from sluice.ranges import Times
from sluice.recovery import Route
from sluice.run.reset_plan import Reset
from sluice.text import LONGEST_RUN, run_of_interval

CLOSING = {"rows": 4, "late": [], "partly_late": 0, "latest": None, "late_by": 500, "closed_to": 900}
"""Windows of a batch that closed some."""


def test_ledger_records_a_run_as_events_and_in_tables(each_ledger: Ledger) -> None:
    ledger, closed = each_ledger, {"seconds": 1.5, "verdict": "passed"}
    with attempt(ledger, "r1", span(0, 10), topic_ids={"t": "id-1"}, state="done", closed=closed) as lease:
        assert ledger.runs.known("p", "r1").state == "open"
        commit(ledger, lease, 0, split(0, 6, written=3, filtered=1, quarantined=1, absent=1), split(0, 2, 1))
        commit(ledger, lease, 1, split(6, 10))
        ledger.record(lease, Judged(verdict="passed", judgement={"rows": 7, "names": ["ä", None]}), run_id="r1")
    assert [e["type"] for e in ledger.events("p")] == [
        "RunPlanned", "BatchStarted", "BatchCommitted", "BatchStarted", "BatchCommitted", "Judged", "RunClosed",
    ]  # fmt: skip
    row = ledger.runs.known("p", "r1")
    assert (row.state, row.attempts, row.seconds, row.verdict, row.epoch) == ("done", 1, 1.5, "passed", 1)
    assert row.judgement == {"rows": 7, "names": ["ä", None]}
    assert row.topic_ids == ledger.runs.topic_ids("p") == {"t": "id-1"}
    assert ledger.runs.account("p", "r1") == {
        "run": "r1", "recovery": "replay", "planned": 12, "written": 9, "filtered": 1, "quarantined": 1, "absent": 1,
        "lost": 0, "verdict": "passed", "seconds": 1.5,
    }  # fmt: skip
    last = ledger.offsets.last_batch("p", 1)
    assert last is not None
    assert (last.batch, last.run, last.state) == (1, "r1", "committed")
    assert ledger.offsets.accounts("p", batch=last) == [split(6, 10)]
    assert audit(ledger, "p").balanced


def test_ledger_escapes_text_that_no_database_stores(each_ledger: Ledger) -> None:
    ledger, longest = each_ledger, "ü" * LONGEST_RUN
    for name in ("r", longest, run_of_interval(longest)):
        played(ledger, name, NASTY)
    row = ledger.runs.known("p", "r")
    escaped = r"a\x00b\ud800c\udcffd"
    assert (row.reason, row.error) == (escaped, {"what": escaped, "frames": [escaped, [escaped]]})
    assert row.notes == [f"a note {escaped}"]
    ledger.rebuild()
    assert ledger.runs.find("p", "r") == row
    assert {row.run for row in ledger.runs.newest("p")} == {"r", longest, run_of_interval(longest)}


@pytest.mark.parametrize("name", ["", "r" * 251, "a\0b", "a\ud800", "a\nb", "-a"])
def test_ledger_refuses_a_run_id_that_cannot_be_stored(ledger: Ledger, name: str) -> None:
    with pytest.raises(ConfigError, match="run id") as caught:
        ledger.acquire("p", name)
    str(caught.value).encode()
    assert ledger.events("p") == []


def test_ledger_notes_added_columns_with_the_run_that_wrote_them(ledger: Ledger) -> None:
    tax, city = {"column": "tax", "type": "bigint"}, {"column": "at.city", "type": "string"}
    run(ledger, "dead", state=None)
    with attempt(ledger, "heir") as lease:
        for _ in range(2):  # a fact may be recorded again after a crash
            commit(ledger, lease, 0, split(0, 4), facts=[ChangedColumns([tax, city])], run_id="dead")
        commit(ledger, lease, 1, split(4, 8))
    assert ledger.runs.account("p", "dead")["notes"] == ["columns added to the sink: tax bigint, at.city string"]
    assert "notes" not in ledger.runs.account("p", "heir")
    added = [told["added"] for told in ledger.facts.told("p", ChangedColumns, runs=["dead", "heir"])]
    assert added == [[tax, city]] * 2
    assert (
        ledger.facts.told("p", ChangedColumns, runs=["heir"]) == ledger.facts.told("p", ChangedColumns, runs=[]) == []
    )
    assert ledger.facts.told("q", ChangedColumns) == []


def told(ledger: Ledger, name: str) -> dict[str, Any]:
    return {key: told for fact in ledger.facts.of_run("p", name) for key, told in fact.account().items()}


def test_ledger_counts_windows_of_a_batch_once(ledger: Ledger) -> None:
    def batch(name: str, number: int, *accounts: Any, epoch: int = 1, scope: str = "", **windows: Any) -> None:
        with ledger.acquire("p", name, scope=scope) as lease:
            ledger.record(lease, *batch_committed(epoch, number, accounts, facts=[Windows.from_dict(windows)]))

    first = split(0, 6, written=4, filtered=2)
    moved = {"rows": 3, "late": [["t", 0, 0, 6, 2]], "partly_late": 1, "latest": 700, "late_by": 100, "closed_to": 500}
    run(ledger, "r1", planned=[span(0, 6)], state=None)
    for _ in range(2):  # as after a crash
        batch("r1", 0, first, **moved)
    batch("r1", 1, **CLOSING)
    assert ledger.facts.event_times("p", "as now") == []
    times = [["t", 0, 0, 6, 600, 700], ["t", 1, 0, 2, None, None]]
    batch("r1", 0, first, **moved, timing="as now", times=times)
    assert ledger.facts.event_times("p", "as now") == [Times(span(0, 6), 600, 700), Times.none(span(0, 2, 1))]
    assert ledger.facts.event_times("p", "as before") == []
    for number in (0, 1):  # as a run of an interval that is cleared
        batch("r3", number, epoch=-1, scope="of march", **CLOSING | {"late_by": 0, "replaced": 4 - number})
    assert told(ledger, "r3")["windows"] == {
        "rows": 4, "late": 0, "partly_late": 0, "late_by": None, "closed_to": 900, "replaced": 3
    }  # fmt: skip
    wanted = {"rows": 7, "late": 2, "partly_late": 1, "late_by": 100, "closed_to": 900}
    assert told(ledger, "r1")["windows"] == ledger.runs.account("p", "r1")["windows"] == wanted
    epochs = range(1, 1), range(1, 2), range(2, 3)
    assert [ledger.facts.reach("p", some) for some in epochs] == [(None, 0), (700, 900), (None, 0)]
    batch("r4", 0, epoch=2, **CLOSING, former=[["t", 0, 6, 9, 2]], former_to=3600)
    assert {"former": 2, "former_to": 3600}.items() <= told(ledger, "r4")["windows"].items()
    for number, latest in ((1, 700), (2, 600)):
        batch("r5", number, epoch=2, **CLOSING, partitions={"at": number, "latest": [["t", 0, latest], ["t", 1, 900]]})
    assert list(ledger.facts.partition_times("p", 1)) == [], "an earlier version noted none"
    assert list(ledger.facts.partition_times("p", 2)) == [
        ("t", 0, 600, 2), ("t", 1, 900, 2), ("t", 0, 700, 1), ("t", 1, 900, 1),
    ]  # fmt: skip
    ledger.rebuild()
    assert ledger.offsets.last_batch("p", 1).batch == 1
    assert (ledger.runs.last_plan("p", 1), ledger.runs.last_plan("p", 2)) == ([span(0, 6)], [])
    assert audit(ledger, "p").balanced


def test_ledger_counts_dedupe_of_a_batch_once(ledger: Ledger) -> None:
    dropped = {"duplicates": [["t", 0, 0, 5, 2], ["t", 1, 0, 5, 1]], "late": [], "late_by": 0}
    late = {"duplicates": [], "late": [["t", 0, 5, 9, 3]], "late_by": 1000}
    nothing = {"duplicates": [], "late": [], "late_by": 2000}
    with ledger.acquire("p", "r1") as lease:
        for batch, dedupe in ((0, dropped), (0, dropped), (1, late), (2, nothing)):
            ledger.record(lease, *batch_committed(1, batch, [], facts=[Duplicates.from_dict(dedupe)]))
    assert list(ledger.facts.partition_times("p", 1)) == []
    with ledger.acquire("p", "r2") as lease:  # event times of a batch that dropped nothing
        for epoch, batch in ((1, 3), (2, 0), (-1, 0)):
            noted = {**nothing, "partitions": {"at": 7, "latest": [["t", 0, 500]]}}
            ledger.record(lease, *batch_committed(epoch, batch, [], facts=[Duplicates.from_dict(noted)]))
    assert list(ledger.facts.partition_times("p", 2)) == [("t", 0, 500, 7)]
    assert told(ledger, "r1") == {"dedupe": {"duplicate": 3, "late": 3, "late_by": 1000}}
    assert told(ledger, "r2") == {}


def test_ledger_has_the_second_attempt_of_a_run_and_its_newest_plan(ledger: Ledger) -> None:
    with attempt(ledger, "r1", topic_ids={"t": "id-1"}, state="failed", closed={"error": {"what": "broken"}}):
        first = ledger.runs.known("p", "r1")
    run(ledger, "b", state=None)
    failed = ledger.runs.known("p", "r1")
    assert (failed.state, failed.error, failed.attempts) == ("failed", {"what": "broken"}, 1)
    run(ledger, "r1", topic_ids={"t": "id-2"}, state=None)
    again = ledger.runs.known("p", "r1")
    assert (again.state, again.error, again.closed_at, again.attempts) == ("open", None, None, 2)
    assert (again.opened_at, again.sequence) == (first.opened_at, first.sequence)
    assert ledger.runs.topic_ids("p") == {"t": "id-2"}, "of the newest run that saw some"
    run(ledger, "r1", split(0, 4), verdict="passed")
    run(ledger, "r1", split(4, 9), first=1, state="failed")
    again = ledger.runs.known("p", "r1")
    assert (again.verdict, again.judgement, ledger.verdicts.unjudged("p", "live")) == (None, None, ["r1"]), (
        "of its own rows"
    )


def test_ledger_notes_of_an_interval_are_those_of_its_last_attempt(ledger: Ledger) -> None:
    for kind, kept in (("interval", ["second"]), ("live", ["first", "second"])):
        for note in ("first", "second"):
            with attempt(ledger, kind, kind=kind, state="succeeded") as lease:
                ledger.record(lease, Degraded(note=note))
        assert ledger.runs.known("p", kind).notes == kept


def test_ledger_gives_a_reconciled_batch_to_the_run_that_wrote_it(ledger: Ledger) -> None:
    run(ledger, "a", state=None)
    with attempt(ledger, "b") as lease:
        commit(ledger, lease, 0, split(0, 4), run_id="a")
        ledger.record(lease, RunClosed(state="abandoned"), run_id="a")
    assert [ledger.runs.account("p", name)["written"] for name in "ab"] == [4, 0]
    assert ledger.verdicts.unjudged("p", "live") == ["a"]
    ledger.decide("p", "a", Judged(verdict="passed", judgement={}))
    assert ledger.verdicts.unjudged("p", "live") == []
    with ledger.acquire("p", "c") as lease:  # a driver had died once more
        commit(ledger, lease, 1, split(4, 8), run_id="a")
    assert ledger.verdicts.unjudged("p", "live") == ["a"], "that batch was not judged with the others"


def test_ledger_lists_runs_that_wrote_rows_and_have_no_verdict(ledger: Ledger) -> None:
    """By their kind; also if they failed behind their rows, or only closed windows."""
    run(ledger, "interval", split(0, 4), kind="interval", epoch=-1, state="failed")
    run(ledger, "live", split(0, 4), state="failed")
    for batch, (name, rows) in enumerate((("closed nothing", 0), ("closed windows", 4)), 1):
        with attempt(ledger, name, state="failed") as lease:
            ledger.record(lease, *batch_committed(1, batch, [], facts=[Windows.from_dict(CLOSING | {"rows": rows})]))
    run(ledger, "no batch", state="failed")
    assert ledger.verdicts.unjudged("p", "live") == ["live", "closed windows"]
    assert ledger.verdicts.unjudged("p", "interval") == ["interval"]


def test_ledger_has_the_newest_epoch_and_the_newest_engine(ledger: Ledger) -> None:
    assert ledger.runs.engine("p") is None
    with ledger.acquire("p", "r") as lease:
        ledger.record(lease, EpochOpened(epoch=1, lineage=Route.LOG, positions=None))
        assert ledger.offsets.epoch("p") == Epoch(1, Route.LOG, None)
        ledger.record(lease, EpochOpened(epoch=2, lineage=Route.DIRECT, positions={"t": {0: 5, 10: 7}}))
        ledger.record(lease, EpochOpened(epoch=1, lineage=Route.DIRECT, positions=None))
    assert ledger.offsets.epoch("p") == Epoch(2, Route.DIRECT, {"t": {0: 5, 10: 7}})
    for engine in ("arrow", "spark", None):  # the last had no records
        with attempt(ledger, "r", state="done", closed={"engine": engine}):
            pass
    assert (ledger.runs.engine("p"), ledger.runs.engine("other")) == ("spark", None)


def test_ledger_rebuilds_its_derived_tables_from_events(each_ledger: Ledger) -> None:
    ledger, ids = each_ledger, {"t": "id-1"}
    with attempt(ledger, "a", topic_ids=ids) as lease:
        for _ in range(2):
            commit(ledger, lease, 0, split(0, 3, written=2, absent=1))
        ledger.record(lease, BatchStarted(epoch=1, batch=1, ranges=[]))
    with ledger.acquire("p", "b") as lease:
        ledger.record(lease, *batch_committed(1, 1, [split(3, 9)]), run_id="a")
        ledger.record(lease, RunClosed(state="abandoned"), run_id="a")
    run(ledger, "b", state=None, topic_ids=ids)
    run(ledger, "b", state="failed", topic_ids=ids)
    with attempt(ledger, "c", pipeline="q", state="done") as lease:
        ledger.record(lease, EpochOpened(epoch=2, lineage=Route.LOG, positions={"t": {0: 4, 11: 2}}))
        ledger.record(lease, Degraded(note="less than promised"))
        segment = {"path": "batches/e2-000000-x/part", "records": 5, "length": 100}
        ledger.record(lease, SegmentSealed.of(2, 0, [segment]))
        ledger.record(lease, *batch_committed(2, 0, [split(4, 9, lost=5)], lost=[loss(4, 9)]))
        ledger.record(lease, *batch_committed(REDRIVEN, 0, [split(5, 7)], redriven=Redriven(of="lost")))
        left = {"epoch": 2, "batch": 0, "segments": 0, "records": 0, "bytes": 0}
        ledger.record(lease, SegmentsCleaned(batches=[left]))
        interval = "2013-01-01T00:00:00Z/2013-02-01T00:00:00Z"
        ledger.interval_resolved(lease, interval, ranges=[span(4, 9)], whole=True, topic_ids={"t": "id"})
        ledger.record(lease, *batch_committed(-1, 0, [split(4, 9)], replaced={span(4, 9): (3, 1)}))
        known = Times(span(9, 12), 1356998400000, 1356998400007)
        seen = replace(split(9, 14), times=(known, Times(span(12, 14), 5, 6)))
        ledger.record(lease, *batch_committed(2, 1, [seen]))
        ledger.record(lease, TimesFound(times=[known, Times.none(span(0, 3, 1))]))
        assert ledger.offsets.times("q") == [*seen.times, Times.none(span(0, 3, 1))]
        ledger.record(lease, Judged(verdict="empty", judgement={}), run_id="c")
    before = derived(ledger)
    assert all(before.values())
    for emptied in ((), schema.DERIVED):
        with ledger._engine.begin() as connection:
            for table in emptied:
                connection.execute(table.delete())
        assert ledger.rebuild() == len(ledger.events("p")) + len(ledger.events("q"))
        assert derived(ledger) == before


def test_ledger_drops_old_runs_that_found_nothing_and_no_other(each_ledger: Ledger) -> None:
    ledger = each_ledger
    run(ledger, "records", split(0, 3), verdict="passed")
    for name in ("empty", "noted", "recent"):
        run(ledger, name, verdict="empty")
    run(ledger, "failed", state="failed", verdict="empty")
    run(ledger, "unjudged")
    run(ledger, "retracted", kind="retract", verdict="empty")
    run(ledger, "empty", verdict="empty", pipeline="q")
    with ledger.acquire("p", "next") as lease:
        ledger.record(lease, Degraded(note="a topic was made again"), run_id="noted")
        with ledger._engine.begin() as connection:
            table = schema.run
            connection.execute(
                table.update().where(table.c.run != "recent").values(closed_at="2026-01-01T00:00:00.000+00:00")
            )
        assert ledger.drop_empty(lease, datetime(2026, 1, 1, tzinfo=UTC)) == 0
        assert ledger.drop_empty(lease, datetime(2026, 1, 2, tzinfo=UTC)) == 1
    assert {row.run for row in ledger.runs.newest("p")} == {
        "records", "noted", "recent", "failed", "unjudged", "retracted",
    }  # fmt: skip
    assert ledger.runs.find("q", "empty")
    assert not ledger.events("p", "empty")
    before = {row.run for row in ledger.runs.newest("p")}
    ledger.rebuild()
    assert {row.run for row in ledger.runs.newest("p")} == before
    assert audit(ledger, "p").balanced


def test_ledger_replaces_event_times_of_before(each_ledger: Ledger) -> None:
    ledger, first, other = each_ledger, span(0, 5), span(5, 9)
    with attempt(ledger, "r") as lease:
        ledger.record(lease, TimesFound(times=[]))
        ledger.record(lease, TimesFound(times=[Times(first, 1, 2), Times(other, 3, 4), Times(first, 5, 6)]))
        assert ledger.offsets.times("p") == [Times(first, 5, 6), Times(other, 3, 4)]
        ledger.record(lease, TimesFound(times=[Times(other, 7, 8)]))
        assert ledger.offsets.times("p") == [Times(first, 5, 6), Times(other, 7, 8)]


def test_ledger_closes_lost_ranges_piece_by_piece(each_ledger: Ledger) -> None:
    ledger = each_ledger

    def lost(state: str | None = "open") -> list[tuple[int, int, str]]:
        return [(r.range.start, r.range.end, r.state) for r in ledger.offsets.lost("p", state=state)]

    accounts = [split(0, 12, written=2, lost=10), split(0, 4, 1, written=3, lost=1)]
    with attempt(ledger, "r") as lease:
        for again in (False, True):  # the same facts again, as after a crash: nothing is opened or closed again
            ledger.record(lease, *batch_committed(1, 0, accounts, lost=[loss(0, 10), loss(3, 4, 1)]))
            assert again or lost() == [(0, 10, "open"), (3, 4, "open")]
            ledger.record(lease, *batch_committed(REDRIVEN, 0, [split(4, 6)], redriven=Redriven(of="lost")))
            assert lost() == [(0, 4, "open"), (6, 10, "open"), (3, 4, "open")]
            assert lost("redriven") == [(4, 6, "redriven")]
    assert [r.range.start for r in ledger.offsets.lost("p", run_id="r")] == [0, 6, 3]
    assert ledger.offsets.lost("p", run_id="other") == []
    assert {r.redriven_by for r in ledger.offsets.lost("p", state="redriven")} == {"r"}
    assert [(e.account, e.of) for e in ledger.offsets.entries("p") if e.epoch == REDRIVEN] == [(split(4, 6), "lost")]
    assert sum(a.counts.lost for a in ledger.offsets.accounts("p")) == 11, (
        "redriven offsets are no part of the live account"
    )


def test_ledger_has_the_leader_epochs_of_the_newest_live_run_until_a_reset(ledger: Ledger) -> None:
    def plan(name: str, *leaders: tuple[str, int, int, int], kind: str = "live") -> None:
        run(ledger, name, state=None, kind=kind, leaders=leaders)

    assert ledger.runs.leaders("p") == {}
    plan("a", ("t", 0, 3, 10), ("t", 1, 4, 20))
    plan("b", ("t", 0, 5, 11))
    plan("c", kind="redrive")
    assert ledger.runs.leaders("p") == {("t", 0): (5, 11)}
    plan("d")
    assert ledger.runs.leaders("p") == {}, "of an earlier version: runs repeat what they know"
    plan("e", ("t", 0, 5, 11))
    with ledger.acquire("p", "f") as lease:
        seen = Reset(2, Route.DIRECT, {}, (), False, (), {}, "r")
        ledger.record(lease, PipelineReset(**seen.as_dict()))
    assert ledger.runs.leaders("p") == {}, "it starts over"
