"""What the ledger answers, and what it says of the past to whoever judges the lag."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.ledger.conftest import plan, split

from sluice.errors import ConfigError
from sluice.ledger import Epoch, Ledger, UnknownRunError
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.recovery import Route


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty one."""
    return Ledger.open(f"sqlite:///{tmp_path}/ledger.db")


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


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def test_past_runs_are_told_newest_first_with_what_they_planned_and_committed(ledger: Ledger) -> None:
    run(ledger, "a", [span(0, 10), span(0, 5, 1)], [span(0, 6)], [span(6, 10), span(0, 5, 1)])
    run(ledger, "b", [span(10, 20)], state="failed")
    run(ledger, "open", [span(10, 30)], state=None)
    run(ledger, "redriven", [span(0, 1)], kind="redrive")
    told = [(r.run, r.state, planned, sorted(committed)) for r, planned, committed in ledger.past("p", limit=5)]
    assert told == [
        ("b", "failed", [span(10, 20)], []),
        ("a", "done", [span(0, 10), span(0, 5, 1)], [span(0, 10), span(0, 5, 1)]),
    ]
    assert [r.run for r, _, _ in ledger.past("p", limit=1)] == ["b"]
    assert ledger.past("another", limit=5) == []


def test_the_pace_is_that_of_batches_of_whole_runs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_of_several_attempts_the_newest_plan_is_told(ledger: Ledger) -> None:
    run(ledger, "a", [span(0, 10)], state="failed")
    run(ledger, "a", [span(4, 12)], state="failed")
    ((row, planned, _),) = ledger.past("p", limit=5)
    assert (row.attempts, planned) == (2, [span(4, 12)])


def test_the_furthest_ends_are_those_of_the_epochs_newest_batches(ledger: Ledger) -> None:
    assert ledger.furthest("p", 1) == {}
    run(ledger, "a", [span(0, 10)], [span(0, 6), span(0, 3, 1)], [span(6, 10)])
    assert ledger.furthest("p", 1) == {"t": {0: 10, 1: 3}}
    assert ledger.furthest("p", 1, batches=1) == {"t": {0: 10}}
    assert ledger.furthest("p", 2) == {}


def test_a_run_at_work_is_the_one_that_holds_the_lease(ledger: Ledger) -> None:
    assert ledger.running("p") is None
    with ledger.acquire("p", "busy"):
        assert ledger.running("p") == "busy"
        assert ledger.running("another") is None
    assert ledger.running("p") is None


def test_rows_of_a_run_that_failed_behind_them_wait_for_a_verdict_too(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    for run, batch in (("rows", 0), ("none", None)):
        with ledger.acquire("p", run) as lease:
            plan(ledger, lease)
            if batch is not None:
                ledger.batch_committed(lease, epoch=1, batch=batch, accounts=[split(0, 4)])
            ledger.run_closed(lease, state="failed", error={"exit_code": 20})
    assert ledger.unjudged("p", "live") == ["rows"]


def test_questions_about_nothing_have_answers(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    assert (ledger.run("p", "r"), ledger.runs("p"), ledger.events("p"), ledger.accounts("p")) == (None, [], [], [])
    assert (ledger.epoch("p"), ledger.last_batch("p", 1), ledger.topic_ids("p")) == (
        Epoch(1, Route.DIRECT, None), None, {},
    )  # fmt: skip
    with pytest.raises(UnknownRunError):
        ledger.account("p", "r")


def test_the_newest_come_first_and_events_in_their_order(ledger_url: str) -> None:
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


def test_a_question_with_such_text_is_a_users_mistake(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with pytest.raises(ConfigError, match="a character that no database can store"):
        ledger.run("p", "\ud800")
    if "postgresql" in ledger_url:
        with pytest.raises(ConfigError, match="a character that no database can store"):
            ledger.run("p", "a\0b")


def test_a_batch_that_was_begun_and_not_committed_keeps_the_versions_that_it_joins(ledger: Ledger) -> None:
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
