"""Questions to the ledger, also those of the lag about past runs, and profiles of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place
from tests.unit.ledger.conftest import plan, span, split

from sluice.errors import ConfigError
from sluice.ledger import Epoch, Ledger, UnknownRunError
from sluice.profile import NO_ROWS, ColumnProfile, Profile
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.recovery import Route


def run(
    ledger: Ledger, name: str, planned: list[OffsetRange], *batches: list[OffsetRange], state: str | None = "done",
    kind: str = "live", epoch: int = 1, first: int = 0,
) -> None:  # fmt: skip
    with ledger.acquire("p", name) as lease:
        ledger.run_planned(lease, kind=kind, recovery="replay", epoch=epoch, ranges=planned, topic_ids={})
        for number, ranges in enumerate(batches, first):
            accounts = [RangeAccount(r, Counts(written=len(r))) for r in ranges]
            ledger.batch_committed(lease, epoch=epoch, batch=number, accounts=accounts)
        if state is not None:
            ledger.run_closed(lease, state=state, error={"exit_code": 1} if state == "failed" else None)


def test_past_runs_have_planned_and_committed_ranges(ledger: Ledger) -> None:
    run(ledger, "a", [span(0, 10), span(0, 5, 1)], [span(0, 6)], [span(6, 10), span(0, 5, 1)])
    run(ledger, "b", [span(10, 20)], state="failed")
    run(ledger, "open", [span(10, 30)], state=None)
    run(ledger, "redriven", [span(0, 1)], kind="redrive")
    found = [(r.run, r.state, planned, sorted(committed)) for r, planned, committed in ledger.past("p", limit=5)]
    assert found == [
        ("b", "failed", [span(10, 20)], []),
        ("a", "done", [span(0, 10), span(0, 5, 1)], [span(0, 10), span(0, 5, 1)]),
    ]
    assert [r.run for r, _, _ in ledger.past("p", limit=1)] == ["b"]
    assert ledger.past("another", limit=5) == []
    run(ledger, "b", [span(14, 22)], state="failed")
    ((row, planned, _),) = ledger.past("p", limit=1)
    assert (row.attempts, planned) == (2, [span(14, 22)]), "the newest plan of several attempts"


def test_pace_counts_batches_of_finished_runs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(f"2026-01-01T00:{n:02d}:00.000+00:00" for n in range(60))
    monkeypatch.setattr("sluice.ledger.ledger._now", lambda: next(clock))

    def batches(name: str, *, state: str = "done", first: int) -> None:
        with ledger.acquire("p", name) as lease:
            ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
            for number in (first, first + 1):
                spans = [span(number * 100, number * 100 + 100)]
                ledger.batch_started(lease, epoch=1, batch=number, ranges=spans)
                accounts = [RangeAccount(r, Counts(written=len(r))) for r in spans]
                ledger.batch_committed(lease, epoch=1, batch=number, accounts=accounts)
            ledger.run_closed(lease, state=state, error={"exit_code": 1} if state == "failed" else None)

    batches("a", first=0)
    batches("b", first=2, state="failed")
    run(ledger, "nothing", [])
    assert ledger.paces("p", limit=5) == [(200, 180.0)]
    assert ledger.paces("another", limit=5) == []


def test_furthest_ends_are_those_of_the_newest_batches(ledger: Ledger) -> None:
    assert ledger.furthest("p", 1) == {}
    run(ledger, "a", [span(0, 10)], [span(0, 6), span(0, 3, 1)], [span(6, 10)])
    assert ledger.furthest("p", 1) == {"t": {0: 10, 1: 3}}
    assert ledger.furthest("p", 1, batches=1) == {"t": {0: 10}}
    assert ledger.furthest("p", 2) == {}


def test_empty_ledger_has_answers(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    assert (ledger.run("p", "r"), ledger.runs("p"), ledger.events("p"), ledger.accounts("p")) == (None, [], [], [])
    assert (ledger.epoch("p"), ledger.last_batch("p", 1), ledger.topic_ids("p")) == (
        Epoch(1, Route.DIRECT, None), None, {},
    )  # fmt: skip
    with pytest.raises(UnknownRunError):
        ledger.account("p", "r")


def test_runs_come_newest_first_and_events_in_order(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    for run in ("a", "b", "c"):
        with ledger.acquire("p", run) as lease:
            plan(ledger, lease)
    with ledger.acquire("p", "a") as lease:
        ledger.run_closed(lease, state="done")
    assert [r.run for r in ledger.runs("p")] == ["c", "b", "a"]
    assert [r.run for r in ledger.runs("p", limit=2)] == ["c", "b"]
    assert [r.run for r in ledger.runs("p", state="done")] == ["a"]
    assert [r.run for r in ledger.runs("p", kind="live", limit=1)] == ["c"]
    assert ledger.runs("p", kind="interval") == []
    assert [e["run"] for e in ledger.events("p", limit=2)] == ["c", "a"]


def test_question_with_text_that_no_database_stores_is_refused(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with pytest.raises(ConfigError, match="character"):
        ledger.run("p", "\ud800")
    if "postgresql" in ledger_url:
        with pytest.raises(ConfigError, match="character"):
            ledger.run("p", "a\0b")


def test_uncommitted_batch_keeps_the_versions_of_joined_tables(ledger: Ledger) -> None:
    def begin(run_id: str, batch: int, version: int | None, *, then: bool = False) -> None:
        with ledger.acquire("p", run_id) as lease:
            plan(ledger, lease)
            pins = {} if version is None else {"c": {"path": "carriers", "version": version}}
            ledger.batch_started(lease, epoch=1, batch=batch, ranges=[span(0, 10)], tables=pins)
            if then:
                ledger.batch_committed(lease, epoch=1, batch=batch, accounts=[split(0, 10)])

    begin("a", 0, 4, then=True)
    begin("a", 1, 5)
    assert ledger.tables_begun("p", 1, 0) == {}, "it is committed"
    assert ledger.tables_begun("p", 1, 1) == {"c": {"path": "carriers", "version": 5}}
    assert ledger.tables_begun("p", 1, 2) == ledger.tables_begun("p", 2, 1) == ledger.tables_begun("q", 1, 1) == {}
    assert ledger.tables_begun("p", 1, 1, run_id="b") == {}
    begin("b", 1, 6)
    assert ledger.tables_begun("p", 1, 1)["c"]["version"] == 6, "it was begun again"
    assert ledger.tables_begun("p", 1, 1, run_id="b")
    assert ledger.tables_begun("p", 1, 1, run_id="a") == {}
    begin("b", 2, None)
    assert ledger.tables_begun("p", 1, 2) == {}
    assert ledger.account("p", "a")["tables"] == {"c": [4, 5]}
    assert ledger.account("p", "b")["tables"] == {"c": [6]}
    begin("c", 3, None)
    assert "tables" not in ledger.account("p", "c")


def profile(rows: int, nulls: int = 0) -> dict[str, Any]:
    return Profile(rows, {"id": ColumnProfile(rows, nulls, "number", 1, rows)}).as_dict()


def test_profiles_of_batches_add_up_and_count_once(tmp_path: Path) -> None:
    ledger = Place(tmp_path).ledger
    with ledger.acquire("p", "a") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        for batch, rows in ((0, 4), (1, 6), (1, 6)):  # reconciling records a batch again
            account = split(batch * 4, 10)
            ledger.batch_committed(lease, epoch=1, batch=batch, accounts=[account], profile=profile(rows, 1))
    assert ledger.profile("p", ["a"]) == Profile(10, {"id": ColumnProfile(10, 2, "number", 1, 6)})
    with ledger.acquire("p", "i") as lease:
        ledger.run_planned(lease, kind="interval", recovery="replay", epoch=-1, ranges=[], topic_ids={})
        for batch, rows in ((0, 4), (1, 5)):
            ledger.batch_committed(lease, epoch=-1, batch=batch, accounts=[split(0, 5)], profile=profile(rows))
    assert (ledger.profile("p", ["i"]) or NO_ROWS).rows == 5, "the last replacement of an interval"


def test_runs_of_earlier_versions_have_no_profile(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.commit("old", split(0, 5))
    place.commit("new", split(5, 9), profile=profile(4))
    place.commit("empty", split(9, 12, filtered=3), profile=NO_ROWS.as_dict())
    assert place.ledger.profile("p", ["old"]) is None
    assert place.ledger.profile("p", ["empty"]) == NO_ROWS
    assert place.ledger.profiled("p", limit=5) == ["empty", "new"]
    assert place.ledger.profiled("p", limit=1) == ["empty"]


def test_accepted_profiles_are_found_behind_many_failed_runs(tmp_path: Path) -> None:
    """Otherwise repeated failures would become normal."""
    place = Place(tmp_path)
    for number in range(33):
        run, verdict = f"r{number}", "passed" if number < 2 else "failed"
        place.commit(run, split(number * 5, number * 5 + 5), profile=profile(number + 1))
        place.ledger.judged(None, "p", run, verdict=verdict, judgement={})
    place.ledger.verdict_accepted("p", "r2", verdict="failed", reason="x")
    found = place.ledger.accepted("p", before=1 << 40, limit=3)
    assert [accepted.rows for accepted in found] == [3, 2, 1]
