"""The account of runs, in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest
from tests.unit.ledger.conftest import NASTY, commit, plan, played, split

from sluice.audit import audit
from sluice.errors import ConfigError
from sluice.ledger import Epoch, Ledger
from sluice.ranges import OffsetRange, Times
from sluice.recovery import Route
from sluice.text import LONGEST_RUN, run_of_interval


def test_events_tell_the_story_and_the_tables_follow(ledger_url: str) -> None:
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


def test_a_run_that_begins_again_is_another_attempt_of_the_same_run(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        ledger.run_closed(lease, state="failed", error={"what": "broken"})
    first = ledger.run("p", "r1")
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease, ids={"t": "id-2"})
    again = ledger.run("p", "r1")
    assert (first.state, first.error, first.attempts) == ("failed", {"what": "broken"}, 1)
    assert (again.state, again.error, again.closed_at, again.attempts) == ("open", None, None, 2)
    assert (again.opened_at, again.sequence) == (first.opened_at, first.sequence)
    assert ledger.topic_ids("p") == {"t": "id-2"}


def test_what_was_known_of_topics_is_that_of_the_last_plan_whatever_run_it_was(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    for run, ids in (("a", {}), ("b", {}), ("a", {"t": "id-1"})):
        with ledger.acquire("p", run) as lease:
            ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids=ids)
    assert ledger.topic_ids("p") == {"t": "id-1"}


def test_a_reconciled_batch_belongs_to_the_run_that_wrote_it(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
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


def test_what_an_interval_wrote_is_not_judged_with_a_live_run(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    for run, kind, epoch in (("i", "interval", -1), ("live", "live", 1)):
        with ledger.acquire("p", run) as lease:
            ledger.run_planned(lease, kind=kind, recovery="replay", epoch=epoch, ranges=[], topic_ids={})
            ledger.batch_committed(lease, epoch=epoch, batch=0, accounts=[split(0, 4)])
            ledger.run_closed(lease, state="abandoned")
    assert (ledger.unjudged("p", "live"), ledger.unjudged("p", "interval")) == (["live"], ["i"])


def test_a_run_that_only_let_out_what_was_kept_is_judged_too(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    moved = {"late": [], "partly_late": 0, "latest": None, "late_by": 500, "closed_to": 900}
    for run, rows in (("nothing", 0), ("windows", 4)):
        with ledger.acquire("p", run) as lease:
            ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
            ledger.batch_committed(lease, epoch=1, batch=rows, accounts=[], windows={**moved, "rows": rows})
            ledger.run_closed(lease, state="abandoned")
    assert ledger.unjudged("p", "live") == ["windows"]


def test_the_newest_epoch_counts_and_may_change_its_route(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        ledger.epoch_opened(lease, epoch=1, route=Route.LOG, positions=None)
        assert ledger.epoch("p") == Epoch(1, Route.LOG, None)
        ledger.epoch_opened(lease, epoch=2, route=Route.DIRECT, positions={"t": {0: 5, 10: 7}})
        ledger.epoch_opened(lease, epoch=1, route=Route.DIRECT, positions=None)
    assert ledger.epoch("p") == Epoch(2, Route.DIRECT, {"t": {0: 5, 10: 7}})


def test_text_that_no_database_stores_is_stored_with_escapes(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    played(ledger, "r", NASTY)
    row = ledger.run("p", "r")
    assert row is not None
    told = r"a\x00b\ud800c\udcffd"
    assert (row.reason, row.error) == (told, {"what": told, "frames": [told, [told]]})
    assert row.notes == [f"a note {told}"]
    ledger.rebuild()
    assert ledger.run("p", "r") == row


@pytest.mark.parametrize("run", ["", "r" * 251, "a\0b", "a\ud800", "a\nb"])
def test_an_id_that_cannot_be_one_is_refused_before_anything_is_written(ledger_url: str, run: str) -> None:
    ledger = Ledger.open(ledger_url)
    with pytest.raises(ConfigError, match="the run id") as caught:
        ledger.acquire("p", run)
    str(caught.value).encode()
    assert ledger.events("p") == []


def test_the_longest_id_is_one_like_any_other_and_so_is_its_intervals(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    longest = "ü" * LONGEST_RUN
    of_interval = run_of_interval(longest)
    for run in (longest, of_interval):
        played(ledger, run)
    assert {row.run for row in ledger.runs("p")} == {longest, of_interval}


def test_columns_that_a_commit_added_are_told_of_the_run_that_wrote_it(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
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


def test_what_a_run_did_to_windows_is_told_once_for_each_batch(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
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
    told = {"rows": 7, "late": 2, "partly_late": 1, "late_by": 100, "closed_to": 900}
    assert ledger.windows("p", "r1") == ledger.account("p", "r1")["windows"] == told
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


def test_what_dedupe_dropped_is_told_once_for_each_batch(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    dropped = {"duplicates": [["t", 0, 0, 5, 2], ["t", 1, 0, 5, 1]], "late": [], "late_by": 0}
    late = {"duplicates": [], "late": [["t", 0, 5, 9, 3]], "late_by": 1000}
    nothing = {"duplicates": [], "late": [], "late_by": 2000}
    with ledger.acquire("p", "r1") as lease:
        for _ in range(2):
            ledger.batch_committed(lease, epoch=1, batch=0, accounts=[], dedupe=dropped)
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[], dedupe=late)
        ledger.batch_committed(lease, epoch=1, batch=2, accounts=[], dedupe=nothing)
    assert list(ledger.partition_times("p", 1)) == []
    with ledger.acquire("p", "r2") as lease:  # which event times it read is told also of a batch that dropped nothing
        partitions = {"partitions": {"at": 7, "latest": [["t", 0, 500]]}}
        ledger.batch_committed(lease, epoch=1, batch=3, accounts=[], dedupe={**nothing, **partitions})
        ledger.batch_committed(lease, epoch=2, batch=0, accounts=[], dedupe={**nothing, **partitions})
        ledger.batch_committed(lease, epoch=-1, batch=0, accounts=[], dedupe={**nothing, **partitions})
    assert list(ledger.partition_times("p", 2)) == [("t", 0, 500, 7)]
    assert ledger.dedupe("p", "r1") == {"duplicate": 3, "late": 3, "late_by": 1000}
    assert ledger.dedupe("p", "r2") == {}


def test_what_processed_the_records_of_the_newest_run_that_had_some(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    assert ledger.engine("p") is None
    for run, engine in (("a", "arrow"), ("b", "spark"), ("c", None)):
        with ledger.acquire("p", run) as lease:
            plan(ledger, lease, OffsetRange("t", 0, 0, 10))
            ledger.run_closed(lease, state="done", engine=engine)
    assert ledger.engine("p") == "spark"
    assert ledger.engine("other") is None
