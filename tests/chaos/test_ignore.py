"""Strategies ignore_range and ignore_batch: exactly what cannot be read or processed is lost, and nothing else."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.chaos.cases import LONG
from tests.chaos.commands import drain
from tests.chaos.drivers import PASSING, gated, lost, opened
from tests.fixtures.runs import Sandbox, await_that, good

from sluice.ledger.rows import LostRow
from sluice.local.kafka import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def dying_of(*ids: int) -> dict[str, str]:
    """A transform that cannot take the records with these ids."""
    deadly = "CAST(raise_error(concat('cannot take ', id)) AS BIGINT)"
    chosen = ", ".join(map(str, ids)) or "NULL"
    return {"sql": f"SELECT * EXCEPT (id), CASE WHEN id IN ({chosen}) THEN {deadly} ELSE id END AS id FROM source"}


def spans(rows: Sequence[LostRow]) -> list[tuple[int, int, int]]:
    return [(row.range.partition, row.range.start, row.range.end) for row in rows]


def assert_conserved(sandbox: Sandbox) -> None:
    """Each record that was produced is in the sink, in the quarantine or lost, once; and the books say the same."""
    parts = {"written": sandbox.sink(), "quarantined": sandbox.quarantine(), "lost": lost(sandbox)}
    assert sum(parts.values(), Counter()) == Counter(sandbox.produced)
    assert {part: sandbox.total(part) for part in parts} == {part: sum(c.values()) for part, c in parts.items()}
    sandbox.assert_balanced()


def account(sandbox: Sandbox, run: str) -> dict[str, int]:
    return {part: count for part, count in sandbox.account(run).items() if count}


@LONG
def test_each_run_may_have_another_strategy_without_a_new_epoch(sandbox: Sandbox) -> None:
    for number, strategy in enumerate(("ignore_range", "replay", "ignore_batch", "hot", "ignore_range")):
        sandbox.configure(recovery=strategy, transform=dying_of(*[1] * strategy.startswith("ignore")))
        drain(sandbox, 6, f"{number}", bad_every=4)
    (row,) = sandbox.ledger.offsets.lost(sandbox.name)
    assert "cannot take 1" in row.reason
    assert (row.sample, len(row.range), row.state) == ({"offset": 0, "key": "k1", "value": good(1).decode()}, 1, "open")
    assert sandbox.ledger.offsets.epoch(sandbox.name).number == 1
    assert_conserved(sandbox)


@LONG
def test_records_that_retention_takes_during_a_run_are_lost_exactly_and_a_gap_is_no_loss(sandbox: Sandbox) -> None:
    sandbox.configure(recovery="ignore_range", kafka={"max_records_per_batch": 50}, **PASSING)
    sandbox.feed(4)
    transaction = [(1, None, good(n)) for n in (1, 2)]
    sandbox.produced += [(sandbox.topic, *at) for at in sandbox.topics.produce_transaction(
        sandbox.topic, transaction, commit=True
    )]  # fmt: skip
    meanwhile(sandbox, "reading", "batch-started", {0: 1})
    assert spans(sandbox.ledger.offsets.lost(sandbox.name)) == [(0, 0, 1)]
    assert account(sandbox, "reading") == dict(planned=7, written=5, absent=1, lost=1)
    sandbox.feed(4)
    meanwhile(sandbox, "read", "rows-staged", {0: 4})
    assert account(sandbox, "read") == dict(planned=4, written=4), "what was read in time is not lost"
    assert_conserved(sandbox)


def meanwhile(sandbox: Sandbox, run: str, point: str, before: dict[int, int]) -> None:
    """Run, and let retention pass while the driver stands at a point."""
    driver = gated(sandbox, point, run)
    sandbox.topics.delete_records(sandbox.topic, before)
    opened(driver)


def garble(sandbox: Sandbox, partition: int, text: bytes) -> None:
    """Flip a bit of a record where the broker keeps it."""
    sandbox.broker.stop()
    (log,) = (sandbox.broker.data_dir / "data" / f"{sandbox.topic}-{partition}").glob("*.log")
    data = bytearray(log.read_bytes())
    assert data.count(text) == 1
    data[data.index(text)] ^= 1
    log.write_bytes(data)
    sandbox.broker.start()


@LONG
def test_corrupt_record_is_named_under_replay_and_lost_alone_under_ignore_range(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 100})
    for n in range(8):
        sandbox.produce([(n % 2, b"k%d" % n, good(n))])  # each a batch of its own in the broker's log
    together = [Record(0, None, good(n)) for n in range(100, 105)]
    placed = sandbox.topics.produce(sandbox.topic, together, linger_ms=10_000)  # one batch, of one checksum
    sandbox.produced += [(sandbox.topic, *at) for at in placed]
    garble(sandbox, 1, b"name 5")
    garble(sandbox, 0, b"name 102")

    refused = sandbox.run("strict", expect=21)
    assert f"{sandbox.topic}-" in refused.message
    assert "ignore_range" in refused.message
    assert not sandbox.sink()

    sandbox.configure(recovery="ignore_range", kafka={"max_records_per_batch": 100})
    sandbox.run("fine")
    rows = sandbox.ledger.offsets.lost(sandbox.name)
    assert spans(rows) == [(0, 4, 9), (1, 2, 3)]
    assert all(f"-{p} at offset {o} is invalid" in row.reason for (p, o, _), row in zip(spans(rows), rows, strict=True))
    assert [row.sample for row in rows] == [None, None]
    assert account(sandbox, "fine") == dict(planned=13, written=7, lost=6)
    assert_conserved(sandbox)


@pytest.mark.parametrize("recovery", ["ignore_range", "ignore_batch"])
def test_ignore_loses_the_same_ranges_once_when_its_driver_is_killed(sandbox: Sandbox, recovery: str) -> None:
    """Each batch loses and quarantines something."""
    deadly = (1, 6)
    poison = {"POISON_IDS": "1,6,10"}  # 10 is malformed, so it is not decoded
    sandbox.configure(recovery=recovery, transform={"python": "poison:dying"})
    for point in ("sink-committed", None):
        drain(sandbox, 6, "r", bad_every=5, kill_at=point, **poison)
        seen = sandbox.sink() + sandbox.quarantine() + lost(sandbox)
        assert set(seen.values()) <= {1}, f"counted twice after {point}"
        assert seen <= sandbox.on_broker()
    dead = Counter(sandbox.produced[n] for n in deadly)
    if recovery == "ignore_range":
        assert lost(sandbox) == dead
    else:
        assert dead <= lost(sandbox)
        assert not sandbox.sink() & lost(sandbox)
    assert_conserved(sandbox)
    events = [e for e in sandbox.ledger.events(sandbox.name, limit=1000) if e["type"] == "RangeLost"]
    ranges = [(item["partition"], item["start"]) for e in events for item in e["payload"]["ranges"]]
    assert len(ranges) == len(set(ranges)) == len(sandbox.ledger.offsets.lost(sandbox.name))
    assert sandbox.orphans() == sandbox.orphans("table_quarantine") == set()
    assert sandbox.ledger.runs.known(sandbox.name, "r").attempts == 2


@contextmanager
def locked_ledger(sandbox: Sandbox) -> Iterator[None]:
    """Hold the ledger's write lock, as another process may."""
    connection = sqlite3.connect(sandbox.home / "ledger.db", isolation_level=None, timeout=60)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


def is_over(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@LONG
def test_ignore_loses_no_record_to_trouble_of_sink_process_lease_or_ledger(sandbox: Sandbox) -> None:
    impatient = {"SLUICE_LEDGER_URL": f"{sandbox.ledger_url}?timeout=2"}
    sandbox.feed(12)  # two batches

    def configure(recovery: str) -> None:
        sandbox.configure(recovery=recovery, **PASSING)

    def assert_untouched(done: int = 0) -> None:
        assert not lost(sandbox)
        assert sum(sandbox.sink().values()) == done

    configure("ignore_batch")
    driver = gated(sandbox, "batch-started", "no-sink")
    table = sandbox.home / "table"
    table.write_text("a file where the table should be")
    opened(driver, 30)
    table.unlink()
    assert_untouched()

    driver = gated(sandbox, "batch-started", "no-jvm")
    driver.process.kill()  # the JVM alone, as Airflow does when a task is cleared; its Python child goes on
    driver.process.wait()
    driver.open_gate()
    await_that(lambda: is_over(driver.process.pid), "the driver's Python ended")
    assert_untouched()

    configure("ignore_range")
    driver = gated(sandbox, "rows-staged", "fenced")
    sandbox.execute("UPDATE sluice_lease SET token = token + 1, holder = NULL, expires = 0")
    opened(driver, 40)
    assert_untouched()

    # the first batch is done, and the second one is to begin; then its rows are in the sink
    for run, recovery, point, done in (
        ("no-ledger", "ignore_range", "batch-recorded", 6), ("no-ledger-again", "ignore_batch", "sink-committed", 12),
    ):  # fmt: skip
        configure(recovery)
        driver = gated(sandbox, point, run, **impatient)
        with locked_ledger(sandbox):
            assert "the ledger does not answer" in opened(driver, 1).message
        assert_untouched(done)
    assert sandbox.total("written") == 6

    sandbox.run("after")
    sandbox.assert_exact()
    assert not lost(sandbox)
    assert sandbox.account("no-ledger-again")["written"] == 6
    assert account(sandbox, "after") == {}
