"""What the ledger says of the past, for whoever judges the lag."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.ledger import Ledger
from sluice.ranges import Counts, OffsetRange, RangeAccount


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
