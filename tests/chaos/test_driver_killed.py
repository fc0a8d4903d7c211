"""The driver is killed at every named point, doubled, frozen and fenced: the rows must be the same in the end."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from tests.fixtures.runs import Sandbox

from sluice.faults import POINTS

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

# A group shares a run id: each kill is the attempt that has to make the one before it good.
GROUPS = {
    "before-a-batch": ["run-planned", "session-started", "batch-started"],
    "in-a-batch": ["rows-staged:2", "quarantine-staged", "before-sink-commit"],
    "around-the-commit": ["sink-committed", "quarantine-committed", "batch-recorded"],
    "after-the-last-batch": ["query-ended", "judged"],
}


def test_every_point_is_killed_at(all_of_it: bool) -> None:
    """Runs behind all other chaos tests, in whatever file: it looks at where drivers really died."""
    if not all_of_it:
        pytest.skip("only when all chaos tests run")
    assert sorted(set(POINTS) - Sandbox.killed_at) == []


@pytest.mark.parametrize(
    "group",
    [
        pytest.param("before-a-batch", marks=pytest.mark.long),
        pytest.param("in-a-batch", marks=pytest.mark.long),
        "around-the-commit",
        pytest.param("after-the-last-batch", marks=pytest.mark.long),
    ],
)
def test_a_driver_killed_again_and_again_ends_with_each_record_once(shared_sandbox: Sandbox, group: str) -> None:
    sandbox = shared_sandbox
    for point in GROUPS[group]:
        sandbox.feed(8, bad_every=3)
        sandbox.run(group, kill_at=point, validate=point == "judged")
        seen = sandbox.sink() + sandbox.quarantine()
        assert set(seen.values()) <= {1}, f"rows are visible twice after {point}"
        assert seen <= sandbox.on_broker()

    sandbox.run(group)
    sandbox.assert_exact()
    assert sandbox.orphans() == sandbox.orphans("table_quarantine") == set()
    row = sandbox.ledger.run(sandbox.name, group)
    assert row is not None
    assert (row.state, row.attempts) == ("done", len(GROUPS[group]) + 1)

    versions = [sandbox.table(path).version() for path in ("table", "table_quarantine")]
    events = len(sandbox.ledger.events(sandbox.name, limit=10_000))
    again = sandbox.run(group)
    assert "0 offsets to read" in again.stderr
    assert [sandbox.table(path).version() for path in ("table", "table_quarantine")] == versions
    new = [e["type"] for e in sandbox.ledger.events(sandbox.name, limit=10_000)[events:]]
    assert new == ["RunPlanned", "RunClosed"]
    assert sandbox.account(group)["planned"] == 8 * len(GROUPS[group])
    sandbox.assert_exact()


def runs_of(sandbox: Sandbox, path: str = "table") -> Counter[str]:
    return Counter(sandbox.rows(path).column("_run").to_pylist())


def test_another_run_takes_over_and_each_run_keeps_its_rows(sandbox: Sandbox) -> None:
    sandbox.feed(14)
    sandbox.run("a", kill_at="sink-committed:2")
    held = runs_of(sandbox)
    assert set(held) == {"a"}
    assert sandbox.account("a")["written"] < held["a"], "the second batch is in the sink and not in the ledger yet"

    sandbox.run("b")
    sandbox.assert_exact()
    assert runs_of(sandbox) == held + Counter(b=14 - held["a"])
    assert sandbox.account("a")["written"] == held["a"]
    assert sandbox.account("b")["written"] == 14 - held["a"]
    assert {r.run: r.state for r in sandbox.ledger.runs(sandbox.name)} == {"a": "abandoned", "b": "done"}
    (entered,) = [e for e in sandbox.ledger.events(sandbox.name, "a") if "reconciled_by" in e["payload"]]
    assert entered["payload"]["reconciled_by"] == "b"


def test_what_a_dead_driver_read_ahead_is_removed(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 40})
    sandbox.feed(240)
    sandbox.run("a", kill_at="sink-committed:2")
    left = {folder[-15:-9] for folder in sandbox.never_committed()}
    assert left >= {"000002", "000003"}, "nothing was read ahead"
    sandbox.feed(100)  # so the next run divides the rest in another way
    sandbox.run("b")
    sandbox.assert_exact()
    assert sandbox.never_committed() == set()


@pytest.mark.long
def test_what_a_dead_driver_read_ahead_is_removed_when_its_epoch_is_closed(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 40})
    sandbox.feed(240)
    sandbox.run("a", kill_at="sink-committed:2")
    assert sandbox.never_committed()
    sandbox.configure(kafka={"max_records_per_batch": 1000}, recovery="wal")
    sandbox.run("b")
    sandbox.assert_exact()
    assert sandbox.never_committed() == set()


@pytest.mark.parametrize("then", [pytest.param("wal", marks=pytest.mark.long), "replay"])
def test_rows_of_which_a_dead_driver_had_not_sealed_the_records_are_removed(sandbox: Sandbox, then: str) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 40}, recovery="wal")
    sandbox.feed(100)
    sandbox.run("a", kill_at="before-seal:2")
    assert "000001" in {folder[-15:-9] for folder in sandbox.never_committed()}
    sandbox.configure(kafka={"max_records_per_batch": 1000}, recovery=then)
    sandbox.run("b")
    sandbox.assert_exact()
    assert sandbox.never_committed() == sandbox.never_committed(f"logs/{sandbox.name}") == set()


def test_a_second_driver_is_turned_away_while_the_first_one_works(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(6)
    first = sandbox.start("first", gate_at="rows-staged")
    first.await_gate()
    for run in ("second", "first"):  # the same run id is no way in either
        second = sandbox.run(run, expect=40)
        assert "run 'first'" in second.message
    assert sandbox.ledger.run(sandbox.name, "second") is None
    first.open_gate()
    assert first.wait().code == 0
    sandbox.assert_exact()
    assert runs_of(sandbox) == Counter(first=6)


def expire_lease(sandbox: Sandbox) -> None:
    sandbox.execute("UPDATE sluice_lease SET expires = 0")


@pytest.mark.parametrize(
    ("point", "told"),
    [
        pytest.param("rows-staged", "this driver was fenced", marks=pytest.mark.long),
        ("before-sink-commit", "another driver committed batch 1"),
    ],
)
def test_a_frozen_driver_that_wakes_after_it_was_replaced_writes_nothing(
    sandbox: Sandbox, point: str, told: str
) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(12, bad_every=4)
    zombie = sandbox.start("zombie", gate_at=f"{point}:2")  # its first batch is committed
    zombie.await_gate()
    zombie.signal(signal.SIGSTOP)
    expire_lease(sandbox)
    sandbox.run("heir")
    sandbox.assert_exact()
    versions = [sandbox.table(path).version() for path in ("table", "table_quarantine")]
    events = sandbox.ledger.events(sandbox.name, limit=10_000)

    zombie.open_gate()
    zombie.signal(signal.SIGCONT)
    end = zombie.wait()
    assert end.code == 40, end.stderr[-4000:]
    assert told in end.message
    assert [sandbox.table(path).version() for path in ("table", "table_quarantine")] == versions
    assert sandbox.ledger.events(sandbox.name, limit=10_000) == events
    assert set(runs_of(sandbox)) == {"zombie", "heir"}
    sandbox.assert_exact()


def test_of_two_drivers_at_the_same_commit_one_gets_in_and_the_rows_are_its_own(sandbox: Sandbox) -> None:
    """The zombie wakes between its heir's last look at the lease and its heir's commit."""
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(6)
    zombie = sandbox.start("zombie", gate_at="before-sink-commit")
    zombie.await_gate()
    zombie.signal(signal.SIGSTOP)  # or it would renew its lease before a heir on a busy machine has asked for it
    expire_lease(sandbox)
    heir = sandbox.start("heir", gate_at="before-sink-commit")
    heir.await_gate()

    zombie.open_gate()
    zombie.signal(signal.SIGCONT)
    assert zombie.wait().code == 40
    assert runs_of(sandbox) == Counter(zombie=6), "the commit itself was the zombie's: it came first"
    heir.open_gate()
    assert heir.wait().code == 40
    assert runs_of(sandbox) == Counter(zombie=6)

    sandbox.run("heir")
    sandbox.assert_exact()
    assert runs_of(sandbox) == Counter(zombie=6)
    assert sandbox.account("zombie")["written"] == 6
    assert sandbox.account("heir")["planned"] == 0


@pytest.mark.parametrize("point", [pytest.param("quarantine-staged", marks=pytest.mark.long), "sink-committed"])
def test_quarantined_rows_and_their_account_name_the_same_run(sandbox: Sandbox, point: str) -> None:
    sandbox.feed(6, bad_every=2)
    sandbox.run("a", kill_at=point)
    sandbox.run("b")
    sandbox.assert_exact()
    counted = {run: sandbox.account(run)["quarantined"] for run in ("a", "b")}
    assert runs_of(sandbox, "table_quarantine") == +Counter(counted)


@pytest.mark.long
@pytest.mark.parametrize("point", ["quarantine-staged", "sink-committed"])
def test_a_decode_changed_between_two_attempts_cannot_split_a_batch_two_ways(sandbox: Sandbox, point: str) -> None:
    """An attempt took other records for bad than the next one does: the sink's commit decides whose word counts."""
    sandbox.produce([(0, None, b'{"id": 1, "name": "a"}'), (0, None, b'{"id": "x", "name": "b"}')])
    sandbox.run("a", kill_at=point)
    sandbox.configure(decode={"json": {"schema": "id STRING, name STRING"}})  # now both are good
    second = sandbox.start("a").wait()
    both = sandbox.sink() & sandbox.quarantine()
    assert not both, f"{both} is written and quarantined"
    if second.code == 0:
        sandbox.assert_exact()
