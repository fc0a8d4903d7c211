"""Drivers into Delta are killed, doubled, frozen and fenced: the rows are the same in the end.

They are killed at each other point in test_kills.py, and in recorded states.
"""

from __future__ import annotations

import pytest
from tests.chaos.cases import LONG, long
from tests.chaos.commands import by_run, drain, versions
from tests.chaos.drivers import PASSING, asleep, gated, opened, woken
from tests.fixtures.runs import Sandbox

from sluice.faults import POINTS

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def test_every_point_is_killed_at(all_of_it: bool) -> None:
    """Runs behind all other chaos tests, in whatever file: it looks at where drivers really died."""
    if not all_of_it:
        pytest.skip("only when all chaos tests run")
    in_a_unit_test = {"events-applied"}  # tests/unit/ledger/test_store.py
    assert sorted(set(POINTS) - Sandbox.killed_at - in_a_unit_test) == []


def test_driver_that_is_killed_ends_with_each_record_once_and_then_nothing_to_do(sandbox: Sandbox) -> None:
    drain(sandbox, 8, "r", bad_every=3, kill_at="sink-committed")
    seen = sandbox.sink() + sandbox.quarantine()
    assert set(seen.values()) <= {1}, "rows are visible twice"
    assert seen <= sandbox.on_broker()

    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.orphans() == sandbox.orphans("table_quarantine") == set()
    row = sandbox.ledger.runs.known(sandbox.name, "r")
    assert (row.state, row.attempts) == ("done", 2)

    before, events = versions(sandbox), len(sandbox.ledger.events(sandbox.name, limit=10_000))
    assert "0 offsets to read" in sandbox.run("r").stderr
    assert versions(sandbox) == before
    new = [e["type"] for e in sandbox.ledger.events(sandbox.name, limit=10_000)[events:]]
    assert new == ["RunPlanned", "RunClosed"]
    assert sandbox.account("r")["planned"] == 8
    sandbox.assert_exact()


@LONG
@pytest.mark.parametrize(
    ("recovery", "point", "batch", "then", "size"),
    [
        ("replay", "sink-committed:2", "000003", "replay", 40),
        ("replay", "sink-committed:2", "000003", "wal", 1000),
        ("wal", "before-seal:2", "000001", "replay", 1000),
        ("wal", "before-seal:2", "000001", "wal", 1000),
    ],
    ids=["read-ahead", "read-ahead-of-a-closed-epoch", "not-sealed-of-a-closed-epoch", "not-sealed"],
)
def test_staged_rows_of_a_dead_driver_are_removed(
    sandbox: Sandbox, recovery: str, point: str, batch: str, then: str, size: int
) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 40}, recovery=recovery)
    drain(sandbox, 240, "a", kill_at=point)
    assert batch in {folder[-15:-9] for folder in sandbox.never_committed()}, "nothing was staged ahead"
    sandbox.feed(100)  # so the next run divides the rest in another way
    sandbox.configure(kafka={"max_records_per_batch": size}, recovery=then)
    sandbox.run("b")
    sandbox.assert_exact()
    assert sandbox.never_committed() == sandbox.never_committed(f"logs/{sandbox.name}") == set()


@LONG
@pytest.mark.parametrize("point", ["quarantine-staged", "sink-committed"])
def test_decode_that_changes_between_two_attempts_cannot_split_a_batch_two_ways(sandbox: Sandbox, point: str) -> None:
    """An attempt took other records for bad than the next one does: the sink's commit decides whose word counts."""
    sandbox.produce([(0, None, b'{"id": 1, "name": "a"}'), (0, None, b'{"id": "x", "name": "b"}')])
    sandbox.run("a", kill_at=point)
    sandbox.configure(decode={"json": {"schema": "id STRING, name STRING"}})  # now both are good
    second = sandbox.start("a").wait()
    assert not sandbox.sink() & sandbox.quarantine()
    if second.code == 0:
        sandbox.assert_exact()


@LONG
def test_second_driver_is_turned_away_while_the_first_one_works(sandbox: Sandbox) -> None:
    sandbox.configure(**PASSING)
    sandbox.feed(6)
    first = gated(sandbox, "rows-staged", "first")
    for run in ("second", "first"):  # the same run id is no way in either
        assert "run 'first'" in sandbox.run(run, expect=40).message
    opened(first)
    sandbox.assert_exact()
    assert set(by_run(sandbox)) == {"first"}


@pytest.mark.parametrize("point", [*long("rows-staged"), "before-sink-commit"])
def test_frozen_driver_that_wakes_after_it_was_replaced_writes_nothing(sandbox: Sandbox, point: str) -> None:
    """Before its last look at the lease it is fenced; behind it, its heir's commit of the same batch stops it."""
    sandbox.configure(**PASSING)
    sandbox.feed(12, bad_every=4)
    zombie = asleep(sandbox, f"{point}:2")  # its first batch is committed
    sandbox.run("heir")
    sandbox.assert_exact()
    before, events = versions(sandbox), sandbox.ledger.events(sandbox.name, limit=10_000)
    woken(zombie)
    assert versions(sandbox) == before
    assert sandbox.ledger.events(sandbox.name, limit=10_000) == events
    assert set(by_run(sandbox)) == {"zombie", "heir"}
    sandbox.assert_exact()
