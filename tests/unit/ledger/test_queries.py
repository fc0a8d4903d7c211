"""Questions to the ledger: runs and sums, announced ranges, joined tables, profiles, and remembered answers."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.books import Place
from tests.fixtures.ledgers import attempt
from tests.fixtures.showcase import Past, fill
from tests.unit.ledger.conftest import commit, run, span, split

from sluice.errors import ConfigError
from sluice.facts.profile import NO_ROWS, ColumnProfile, Profile
from sluice.ledger import Epoch, Ledger, Unannounced, UnknownRunError, schema
from sluice.ledger.cache import Cache
from sluice.ledger.events import Announced, BatchStarted, Judged, Redriven, RunClosed, VerdictAccepted, batch_committed
from sluice.ranges import Counts, OffsetRange
from sluice.recovery import Route


def test_ledger_that_is_empty_has_answers(each_ledger: Ledger) -> None:
    ledger = each_ledger
    assert (ledger.runs.find("p", "r"), ledger.runs.newest("p"), ledger.events("p"), ledger.offsets.accounts("p")) == (
        None,
        [],
        [],
        [],
    )
    assert ledger.offsets.epoch("p") == Epoch(1, Route.DIRECT, None)
    assert (ledger.offsets.last_batch("p", 1), ledger.runs.topic_ids("p"), ledger.offsets.furthest("p", 1)) == (
        None,
        {},
        {},
    )
    with pytest.raises(UnknownRunError):
        ledger.runs.account("p", "r")


def test_ledger_has_the_ends_of_each_partition_among_those_that_stand(each_ledger: Ledger) -> None:
    chance = Random(3)
    counts = dict.fromkeys(("written", "filtered", "quarantined", "absent", "lost"), 0)
    rows = [
        {
            "pipeline": chance.choice("ppq"), "epoch": chance.choice([-2, 0, 1, 2]), "batch": n, "run": "r",
            "topic": chance.choice(["t", "T", "é", "a b", "z"]), "partition": chance.choice([0, 1, 7, 10]),
            "start": n, "end": chance.randrange(10_000), "closed": chance.choice([None, None, "reset"]), **counts,
        }
        for n in range(300)
    ]  # fmt: skip
    with each_ledger._engine.begin() as connection:
        connection.execute(schema.account.insert(), rows)
    stand: dict[str, dict[int, int]] = {}
    known: dict[str, dict[int, int]] = {}
    for row in sorted((row for row in rows if row["pipeline"] == "p"), key=lambda row: row["end"]):
        for ends in (known, stand) if row["epoch"] > 0 and row["closed"] is None else (known,):
            ends.setdefault(row["topic"], {})[row["partition"]] = row["end"]
    assert (each_ledger.offsets.reached("p"), each_ledger.offsets.reached("p", ever=True)) == (stand, known)


def test_ledger_refuses_a_question_with_text_that_no_database_stores(each_ledger: Ledger) -> None:
    for text in ["\ud800", "a\0b"] if each_ledger._engine.name == "postgresql" else ["\ud800"]:
        with pytest.raises(ConfigError, match="character"):
            each_ledger.runs.find("p", text)


def test_ledger_has_runs_newest_first_and_events_in_order(each_ledger: Ledger) -> None:
    ledger = each_ledger
    for name in ("a", "b", "c"):
        run(ledger, name, state=None)
    with ledger.acquire("p", "a") as lease:
        ledger.record(lease, RunClosed(state="done"))
    for asked, found in (
        ({}, ["c", "b", "a"]),
        ({"limit": 2}, ["c", "b"]),
        ({"state": "done"}, ["a"]),
        ({"kind": "live", "limit": 1}, ["c"]),
        ({"kind": "interval"}, []),
    ):
        assert [r.run for r in ledger.runs.newest("p", **asked)] == found  # type: ignore[arg-type]
    assert [e["run"] for e in ledger.events("p", limit=2)] == ["c", "a"]


def test_ledger_has_planned_and_committed_ranges_of_past_runs(ledger: Ledger) -> None:
    planned = [span(0, 10), span(0, 5, 1)]
    run(ledger, "a", split(0, 6), [split(6, 10), split(0, 5, 1)], planned=planned)
    run(ledger, "b", planned=[span(10, 20)], state="failed")
    run(ledger, "open", planned=[span(10, 30)], state=None)
    run(ledger, "redriven", planned=[span(0, 1)], kind="redrive")
    found = [(r.run, r.state, planned, sorted(committed)) for r, planned, committed in ledger.runs.past("p", limit=5)]
    assert found == [("b", "failed", [span(10, 20)], []), ("a", "done", planned, planned)]
    assert [r.run for r, _, _ in ledger.runs.past("p", limit=1)] == ["b"]
    assert ledger.runs.past("another", limit=5) == []
    run(ledger, "b", planned=[span(14, 22)], state="failed")
    ((row, planned, _),) = ledger.runs.past("p", limit=1)
    assert (row.attempts, planned) == (2, [span(14, 22)]), "the newest plan of several attempts"


def test_ledger_has_the_pace_of_batches_of_finished_runs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(f"2026-01-01T00:{n:02d}:00.000+00:00" for n in range(60))
    monkeypatch.setattr("sluice.ledger.ledger._now", lambda: next(clock))
    for name, first, state in (("a", 0, "done"), ("b", 2, "failed")):
        with attempt(ledger, name, state=state) as lease:
            for batch in (first, first + 1):
                commit(ledger, lease, batch, split(batch * 100, batch * 100 + 100))
    run(ledger, "nothing")
    assert ledger.runs.paces("p", limit=5) == [(200, 180.0)]
    assert ledger.runs.paces("another", limit=5) == []


def test_ledger_has_the_furthest_ends_of_the_newest_batches(ledger: Ledger) -> None:
    run(ledger, "a", [split(0, 6), split(0, 3, 1)], split(6, 10))
    assert (ledger.offsets.furthest("p", 1), ledger.offsets.furthest("p", 2)) == ({"t": {0: 10, 1: 3}}, {})
    assert ledger.offsets.furthest("p", 1, batches=1) == {"t": {0: 10}}


def test_ledger_keeps_the_versions_of_tables_that_an_uncommitted_batch_joined(ledger: Ledger) -> None:
    def begin(name: str, batch: int, version: int | None, *, then: bool = False) -> None:
        with attempt(ledger, name) as lease:
            pins = {} if version is None else {"c": {"path": "carriers", "version": version}}
            ledger.record(lease, BatchStarted(epoch=1, batch=batch, ranges=[span(0, 10)], tables=pins))
            if then:
                ledger.record(lease, *batch_committed(1, batch, [split(0, 10)]))

    begin("a", 0, 4, then=True)
    begin("a", 1, 5)
    assert ledger.facts.tables_begun("p", 1, 0) == {}, "it is committed"
    assert ledger.facts.tables_begun("p", 1, 1) == {"c": {"path": "carriers", "version": 5}}
    assert (
        ledger.facts.tables_begun("p", 1, 2)
        == ledger.facts.tables_begun("p", 2, 1)
        == ledger.facts.tables_begun("q", 1, 1)
        == {}
    )
    assert ledger.facts.tables_begun("p", 1, 1, run_id="b") == {}
    begin("b", 1, 6)
    assert ledger.facts.tables_begun("p", 1, 1)["c"]["version"] == 6, "it was begun again"
    assert [bool(ledger.facts.tables_begun("p", 1, 1, run_id=name)) for name in "ab"] == [False, True]
    begin("c", 2, None)
    assert ledger.facts.tables_begun("p", 1, 2) == {}
    assert [ledger.runs.account("p", r).get("tables") for r in "abc"] == [{"c": [4, 5]}, {"c": [6]}, None]


@pytest.fixture
def past(each_ledger: Ledger) -> Ledger:
    """Four live runs, the second of which failed before it committed anything, and an interval replaced twice."""
    ledger = each_ledger
    run(ledger, "a", split(0, 10), split(10, 20, written=7, quarantined=3), verdict="passed")
    run(ledger, "b", planned=[span(20, 70)], state="failed")
    run(ledger, "c", split(20, 80, written=50, filtered=10), verdict="warned", first=2)
    run(ledger, "d", split(80, 90, written=6, lost=4), verdict="failed", first=3, gone=4)
    run(ledger, "i", split(0, 10), kind="interval", epoch=-1)
    run(ledger, "i", split(0, 10, written=9, filtered=1), kind="interval", epoch=-1, first=1)
    return ledger


def test_ledger_pages_of_runs_have_the_counts_of_their_accounts(past: Ledger) -> None:
    lines = past.runs.page("p")
    assert [line.run_id for line in lines] == ["i", "d", "c", "b", "a"]
    for line in lines:
        account = past.runs.account("p", line.run_id)
        assert line.counts.as_dict() == {k: account[k] for k in line.counts.as_dict()}
    assert lines[0].counts == Counts(written=9, filtered=1), "the last split of an interval that was replaced again"
    first = past.runs.page("p", limit=2)
    assert [r.run_id for r in past.runs.page("p", before=first[-1].sequence, limit=2)] == ["c", "b"]
    assert (past.runs.count("p"), past.runs.pipelines()) == (5, {"p"})


def test_ledger_spans_of_runs_are_sums(past: Ledger) -> None:
    spans = past.runs.spans("p", newest=100)
    assert [(s.first, s.last, s.runs) for s in spans] == [(r, r, 1) for r in "abcdi"]
    assert [s.counts for s in spans] == [past.runs.page("p")[n].counts for n in (4, 3, 2, 1, 0)]
    assert [s.found for s in spans] == [20, 50, 60, 10, None], "also of a failed run; not of an interval"
    assert [s.verdicts for s in spans] == [{"passed": 1}, {}, {"warned": 1}, {"failed": 1}, {}]
    assert spans[1].states == {"failed": 1}
    old, middle, new = past.runs.spans("p", newest=100, at_most=3)
    assert [(s.first, s.last, s.runs) for s in (old, middle, new)] == [("a", "a", 1), ("b", "c", 2), ("d", "i", 2)]
    assert (middle.counts, new.counts) == (Counts(written=50, filtered=10), Counts(written=15, filtered=1, lost=4))
    assert (middle.found, middle.verdicts, middle.states) == (60, {"warned": 1}, {"failed": 1, "done": 1})
    assert [s.first for s in past.runs.spans("p", newest=2)] == ["d", "i"]
    assert past.runs.spans("another", newest=5) == []


def test_ledger_glance_has_the_newest_verdict_and_the_open_losses(past: Ledger) -> None:
    known, never = past.runs.glances(["p", "never"], runs=1).values()
    assert ([r.run_id for r in known.runs], known.lost) == (["i"], 4)
    assert known.judged is not None
    assert (known.judged.run_id, known.judged.verdict) == ("d", "failed")
    assert (never.runs, never.judged, never.lost) == ([], None, 0)


def test_ledger_spans_of_a_thousand_runs_are_two_hundred(ledger: Ledger) -> None:
    fill(ledger, "p", Past(1_000, partitions=1, refused=0.1, losses={100: 5}, failures={3: "down"}))
    spans = ledger.runs.spans("p", newest=1_000)
    assert (len(spans), sum(s.runs for s in spans)) == (200, 1_000)
    assert sum((s.counts for s in spans), Counts()) == sum((a.counts for a in ledger.offsets.accounts("p")), Counts())
    assert spans[-1].states == {"done": 4, "failed": 1}


def committed(ledger: Ledger, name: str, batch: int, start: int, end: int, **more: Any) -> None:
    epoch, interval = more.pop("epoch", 1), more.pop("interval", None)
    with attempt(ledger, name, interval=interval) as lease:
        ledger.record(lease, *batch_committed(epoch, batch, [split(start, end)], **more))


def ranges_of(found: Unannounced) -> list[OffsetRange]:
    return [a.range for a in found.accounts]


def announce(ledger: Ledger, name: str, found: Unannounced) -> None:
    ledger.decide("p", name, Announced(upto=sorted(found.upto.items()), version=7))


def test_ledger_announces_committed_ranges_once(ledger: Ledger) -> None:
    committed(ledger, "failed", 0, 0, 5)
    committed(ledger, "passed", 1, 5, 9)
    found = ledger.runs.unannounced("p", "passed")
    assert (ranges_of(found), found.written) == ([span(0, 5), span(5, 9)], {"failed": 5, "passed": 4})
    committed(ledger, "next", 2, 9, 12)  # meanwhile
    for _ in range(2):  # a task that is tried again notes it again
        announce(ledger, "passed", found)
        assert ranges_of(ledger.runs.unannounced("p", "next")) == [span(9, 12)]


def test_ledger_announces_redriven_ranges_and_intervals(ledger: Ledger) -> None:
    committed(ledger, "redrive", 0, 2, 4, epoch=0, redriven=Redriven(of="lost"))
    for batch in (0, 1):
        committed(ledger, "i", batch, 0, 3, epoch=-1, interval="a/b", replaced={span(0, 3): (2, 0)})
    committed(ledger, "other", 0, 3, 5, epoch=-2, interval="b/c")
    committed(ledger, "live", 0, 0, 9)
    found = ledger.runs.unannounced("p", "live")
    assert ranges_of(found) == [span(0, 9), span(2, 4)]
    announce(ledger, "live", found)
    found = ledger.runs.unannounced("p", "i")
    assert (ranges_of(found), found.replaced, found.upto) == ([span(0, 3)], 2, {-1: 1})
    announce(ledger, "i", found)
    assert [ranges_of(ledger.runs.unannounced("p", name)) for name in ("i", "other")] == [[], [span(3, 5)]]


def test_ledger_announces_nothing_again_after_a_rebuild_and_under_a_new_name(ledger: Ledger) -> None:
    committed(ledger, "a", 0, 0, 5)
    announce(ledger, "a", ledger.runs.unannounced("p", "a"))
    ledger.rebuild()
    assert ranges_of(ledger.runs.unannounced("p", "a")) == []
    with ledger.acquire("q", "adopting") as lease:
        ledger.adopted(lease, "p")
    assert ranges_of(ledger.runs.unannounced("q", "a")) == []


def test_ledger_that_was_migrated_announces_nothing_of_its_past(ledger: Ledger, sqlite_url: str) -> None:
    committed(ledger, "a", 0, 0, 5)
    with ledger._engine.begin() as connection:  # as version 0004 left it
        for statement in (
            *(f"DROP INDEX {name}" for name in ("sluice_event_type", "sluice_batch_news", "sluice_account_ends")),
            "ALTER TABLE sluice_batch DROP COLUMN announced",
            "ALTER TABLE sluice_account DROP COLUMN closed",
            f"UPDATE {schema.VERSION_TABLE} SET version_num = '0004'",
        ):
            connection.execute(sa.text(statement))
    ledger = Ledger.open(sqlite_url)
    assert ranges_of(ledger.runs.unannounced("p", "a")) == []
    committed(ledger, "b", 1, 5, 9)
    assert ranges_of(ledger.runs.unannounced("p", "b")) == [span(5, 9)]


def profile(rows: int, nulls: int = 0) -> Profile:
    return Profile(rows, {"id": ColumnProfile(rows, nulls, "number", 1, rows)})


def test_ledger_adds_the_profiles_of_batches_and_counts_each_once(ledger: Ledger) -> None:
    with attempt(ledger, "a") as lease:
        for batch, rows in ((0, 4), (1, 6), (1, 6)):  # reconciling records a batch again
            commit(ledger, lease, batch, split(batch * 4, 10), facts=[profile(rows, 1)])
    assert ledger.profiles.of("p", ["a"]) == Profile(10, {"id": ColumnProfile(10, 2, "number", 1, 6)})
    with attempt(ledger, "i", kind="interval", epoch=-1) as lease:
        for batch, rows in ((0, 4), (1, 5)):
            commit(ledger, lease, batch, split(0, 5), epoch=-1, facts=[profile(rows)])
    assert (ledger.profiles.of("p", ["i"]) or NO_ROWS).rows == 5, "the last replacement of an interval"


def test_ledger_has_no_profile_of_a_run_of_an_earlier_version(place: Place) -> None:
    place.commit("old", split(0, 5))
    place.commit("new", split(5, 9), facts=[profile(4)])
    place.commit("empty", split(9, 12, filtered=3), facts=[NO_ROWS])
    assert (place.ledger.profiles.of("p", ["old"]), place.ledger.profiles.of("p", ["empty"])) == (None, NO_ROWS)
    assert [place.ledger.profiles.runs("p", limit=n) for n in (5, 1)] == [["empty", "new"], ["empty"]]


def test_ledger_finds_accepted_profiles_behind_many_failed_runs(place: Place) -> None:
    """Otherwise repeated failures would become normal."""
    for number in range(33):
        name, verdict = f"r{number}", "passed" if number < 2 else "failed"
        place.commit(name, split(number * 5, number * 5 + 5), facts=[profile(number + 1)])
        place.ledger.decide("p", name, Judged(verdict=verdict, judgement={}))
    place.ledger.decide("p", "r2", VerdictAccepted(verdict="failed", reason="x"))
    found = place.ledger.profiles.accepted("p", before=1 << 40, limit=3)
    assert [accepted.rows for accepted in found] == [3, 2, 1]


def test_remembered_answers_are_found_again_after_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.ledger.cache._OVERLAP", 0)
    ledger, asked = Ledger.open(f"sqlite:///{tmp_path}/a.db"), list[str]()
    remembered: Cache[int] = Cache()

    def find(names: list[str]) -> dict[str, int]:
        asked.extend(names)
        return {name: len(asked) for name in names if name != "unknown"}

    def ask(holds: bool = True) -> list[str]:
        asked.clear()
        remembered.of(ledger, ["p", "q", "unknown"], find, lambda name, _: name != "q" or holds)
        return sorted(asked)

    assert ask() == ["p", "q", "unknown"]
    assert ask() == ["unknown"]
    with attempt(ledger, "r", pipeline="p", state="done"):
        assert ask() == ["p", "unknown"], "a run was planned"
        assert ask() == ["unknown"]
    assert ask() == ["p", "unknown"], "it was closed"
    assert ask(holds=False) == ["q", "unknown"]
    ledger = Ledger.open(f"sqlite:///{tmp_path}/b.db")
    assert ask() == ["p", "q", "unknown"], "another ledger, with fewer events"


def test_remembered_answers_of_pipelines_with_the_newest_events_are_always_found_again(ledger: Ledger) -> None:
    remembered, found = Cache[int](), list[str]()
    run(ledger, "r")
    for _ in range(2):
        remembered.of(ledger, ["p"], lambda names: found.extend(names) or dict.fromkeys(names, 1))  # type: ignore[func-returns-value]
    assert found == ["p", "p"], "PostgreSQL may show an event of a lower id later"
