"""An interval's rows are replaced: exactly these, once, beside everything else."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.chaos import commands
from tests.chaos.commands import at, by_run, days, deep, feed_days, listed, notes, without_run
from tests.chaos.drivers import PASSING, ended, gated, opened
from tests.fixtures.runs import KeptSandbox, Sandbox, consume, good

from sluice.local.kafka import Broker, Topics

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

KEPT = {"keep": "36500d"}
"""Records of 2013 are old, by Kafka's retention and by the log's."""


def versioned(sandbox: Sandbox, number: int, **more: Any) -> None:
    sandbox.configure(transform={"sql": f"SELECT *, {number} AS version FROM source"}, **more)


def versions(sandbox: Sandbox) -> Counter[Any]:
    return Counter((r["_topic"], r["_partition"], r["_offset"], r["version"]) for r in listed(sandbox))


def assert_replaced_by_time(sandbox: Sandbox, *replaced: tuple[int, int, int]) -> None:
    """The table holds each record once, as the last interval wrote it in which its time lies."""
    wanted = Counter[Any]()
    for r in consume(sandbox.broker, sandbox.topic):
        lies = [version for version, start, end in replaced if start <= r.timestamp < end]
        wanted[r.topic, r.partition, r.offset, max(lies, default=1)] += 1
    assert versions(sandbox) == wanted


ORDERS: dict[str, list[list[int]]] = {
    # of each partition, in the order of offsets
    "one record of the future": [[at(1), at(25), *(at(d, n) for d in range(2, 9) for n in range(3))], [at(3)] * 9],
    "source by source": [[at(d, s) for s in range(3) for d in range(1, 9)], [at(d, s) for s in (5, 4) for d in (2, 4)]],
    "backwards": [[at(d, 9 - n) for d in range(8, 0, -1) for n in range(3)], [at(d) for d in (9, 1, 3)]],
    "at the edges": [[at(3) - 1, at(3), at(3), at(5) - 1, at(5), at(5), at(3), at(5) - 1, at(3) - 1, at(5)], []],
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("order", "known"), [*((order, True) for order in ORDERS), ("source by source", False), ("backwards", False)]
)
def test_interval_goes_by_the_times_of_records_whatever_their_order(sandbox: Sandbox, order: str, known: bool) -> None:
    """Whatever their order; with batches of earlier versions, too, which did not look at the times."""
    versioned(sandbox, 1)
    placed = [(p, b"k", good(n), time) for p, times in enumerate(ORDERS[order]) for n, time in enumerate(times)]
    sandbox.produce(placed)
    sandbox.run("live")
    if not known:
        sandbox.execute("DELETE FROM sluice_times")
    versioned(sandbox, 2)
    sandbox.run("march 3 and 4", interval=days(3, 5))
    assert_replaced_by_time(sandbox, (2, at(3), at(5)))
    if not known:
        assert sandbox.ledger.offsets.times(sandbox.name), "what was looked at is known from now on"
    # what arrives later, and a knob that was turned
    sandbox.produce([(0, b"k", good(100), at(4)), (0, b"k", good(101), at(30)), (0, b"k", good(102), at(3, 7))])
    versioned(sandbox, 1)
    sandbox.run("live again")
    versioned(sandbox, 3, interval={"slack": "2d"})
    sandbox.run("once more", interval=days(3, 5))
    assert_replaced_by_time(sandbox, (3, at(3), at(5)))
    versioned(sandbox, 4)
    sandbox.run("all of it", interval=days(1, 31))
    assert_replaced_by_time(sandbox, (4, at(1), at(31)))
    sandbox.assert_exact()
    deep(sandbox)


@pytest.mark.long
def test_interval_goes_by_the_times_that_the_broker_gave(
    spark: SparkSession, broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2, retention_ms=-1, message_timestamp_type="LogAppendTime")
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, name, spark=spark)
    versioned(sandbox, 1)
    assert "no live run has read anything yet" in sandbox.run("too early", interval=days(1, 3)).stderr
    for n in range(8):
        sandbox.produce([(n % 2, b"k", good(n), at(9 - n))])
    sandbox.run("live")
    times = sorted(r.timestamp for r in consume(broker, name))
    versioned(sandbox, 2)
    start, end = (datetime.fromtimestamp(times[n] / 1000, UTC).isoformat() for n in (2, 5))
    sandbox.run("some", interval=(start, end))
    assert_replaced_by_time(sandbox, (2, times[2], times[5]))
    deep(sandbox)


@pytest.mark.long
def test_interval_is_refused_when_the_time_of_a_row_was_changed(sandbox: Sandbox) -> None:
    feed_days(sandbox, 1, 6)
    sandbox.run("live")
    moved = {"_timestamp": "_timestamp + interval '3 days'"}
    commands.delta(sandbox).update(predicate="_partition = 0 AND _offset = 0", updates=moved)
    before = without_run(sandbox)
    assert f"{sandbox.topic}-0 [0, 1)" in sandbox.run("march 4", interval=days(4, 5), expect=41).message
    assert without_run(sandbox) == before


def test_interval_reads_what_its_strategy_says(sandbox: Sandbox) -> None:
    sandbox.configure(recovery="wal", wal=KEPT)
    feed_days(sandbox, 1, 11)
    sandbox.run("live")
    before = without_run(sandbox)
    sandbox.topics.delete_records(sandbox.topic, {0: 5, 1: 5})
    sandbox.configure(recovery="replay", wal=KEPT)
    assert "recovery wal" in sandbox.run("the source alone", interval=days(1, 4), expect=21).message
    sandbox.configure(recovery="wal", wal=KEPT)
    sandbox.run("the log first", interval=days(4, 8))
    (planned,) = (e for e in sandbox.ledger.events(sandbox.name, "the log first") if e["type"] == "RunPlanned")
    assert planned["payload"]["sources"]["kafka"] == []
    shutil.rmtree(sandbox.home / "logs")
    for name in ("what is there", "again"):
        sandbox.configure(recovery="ignore_range", wal=KEPT)
        sandbox.run(name, interval=days(2, 5))
        assert without_run(sandbox) == before
        account = sandbox.account(name)
        assert (account["lost"], account["written"]) == (6, 6)
        assert any("rows of them stay as they were" in note for note in notes(sandbox, name))
        assert sandbox.ledger.offsets.lost(sandbox.name) == []
    sandbox.run("nothing is there", interval=days(1, 2), expect=21)
    sandbox.configure(recovery="hot", engine="spark")
    sandbox.run("held", interval=days(6, 8))
    assert any("hot continued as replay" in note for note in notes(sandbox, "held"))
    assert by_run(sandbox) == {"live": 22, "the log first": 4, "again": 6, "held": 8}
    assert without_run(sandbox) == before


@pytest.mark.long
def test_interval_from_the_log_passes_markers_and_needs_no_broker(sandbox: Sandbox) -> None:
    sandbox.configure(recovery="wal", wal=KEPT, kafka={"isolation_level": "read_committed"})
    feed_days(sandbox, 1, 4)
    sandbox.run("one")
    before = without_run(sandbox)
    sandbox.topics.produce_transaction(sandbox.topic, [(0, None, good(100), at(9))], commit=False)
    sandbox.run("two")  # an aborted record and its marker: nothing is landed
    assert sandbox.account("two")["absent"] == 2
    sandbox.topics.delete_records(sandbox.topic, {0: 8, 1: 6})
    sandbox.run("from the log", interval=days(2, 20))
    assert without_run(sandbox) == before
    assert by_run(sandbox) == {"one": 4, "from the log": 8}
    sandbox.broker.kill()
    try:
        sandbox.run("without a broker", interval=days(1, 3))
    finally:
        sandbox.broker.start()
    assert without_run(sandbox) == before
    deep(sandbox)


# --- beside others -------------------------------------------------------------------------------------------------


def fed_with_bad(sandbox: Sandbox) -> Counter[str]:
    """Six days, each with records in sink and quarantine; return the sink's rows after a live run."""
    feed_days(sandbox, 1, 7, bad=True)
    sandbox.run("live")
    return without_run(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("finisher", ["live", "overlapping-interval"])
def test_interval_of_a_dead_driver_is_finished_by_the_next_run(sandbox: Sandbox, finisher: str) -> None:
    fed_with_bad(sandbox)
    sandbox.configure(rows="filter", transform={"sql": "SELECT * FROM source WHERE id % 4 <> 3"}, **commands.ALL_BAD)
    sandbox.run("march", interval=days(2, 5), kill_at="sink-committed")
    assert sandbox.ledger.offsets.replaced(sandbox.name) == []
    sandbox.run("next", interval=None if finisher == "live" else days(4, 6))
    assert sandbox.ledger.runs.known(sandbox.name, "march").state == "abandoned"
    account = sandbox.ledger.runs.account(sandbox.name, "march")
    # three by the transform, and two that stand in a batch with records of the interval
    assert (account["written"], account["filtered"], account["quarantined"], account["replaced"]) == (6, 5, 3, 9)
    gone = {4 * day - 1 for day in ((2, 3, 4) if finisher == "live" else (2, 3, 4, 5))}
    assert {row["id"] for row in listed(sandbox)} == {4 * day - n for day in range(1, 7) for n in (1, 2, 3)} - gone
    assert set(sandbox.quarantine().values()) == {1}
    deep(sandbox)


@pytest.mark.long
def test_intervals_and_a_live_run_write_at_the_same_time(sandbox: Sandbox) -> None:
    """Two intervals whose rows lie in the same files, and a live run: held where each has looked and not committed."""
    sandbox.configure(**PASSING)
    before = fed_with_bad(sandbox)
    drivers = [
        gated(sandbox, "before-sink-commit", name, interval=interval)
        for name, interval in (("one", days(1, 3)), ("two", days(3, 5)))
    ]
    assert "which overlaps" in sandbox.run("three", interval=days(2, 4), expect=40).message
    assert "'one'" in sandbox.run("one again", interval=days(1, 3), expect=40).message
    sandbox.run("redrive", redriven="quarantined", expect=40)
    new = sandbox.feed(6)
    sandbox.run("live again")
    for driver in drivers:
        driver.open_gate()
    for driver in drivers:
        ended(driver)
    assert by_run(sandbox) == {"live": 6, "one": 6, "two": 6, "live again": 6}
    after = without_run(sandbox)
    assert before <= after
    assert sum(after.values()) == sum(before.values()) + len(new)
    sandbox.assert_exact()
    deep(sandbox)


@pytest.mark.long
def test_interval_waits_for_a_redrive_that_died_while_it_emptied_the_quarantine(sandbox: Sandbox) -> None:
    fed_with_bad(sandbox)
    sandbox.configure(**commands.AS_TEXT)
    commands.killed(sandbox, "sink-committed", "redrive", "--quarantined")
    sandbox.run("march", interval=days(2, 5), expect=40)
    sandbox.run("live again")
    sandbox.run("march", interval=days(2, 5))
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()
    deep(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("point", ["rows-staged", "before-sink-commit"])
def test_redrive_whose_lease_lapsed_gives_way_to_an_interval(sandbox: Sandbox, point: str) -> None:
    """Held before its last look at leases, or behind it, where only the table itself tells it of the other commit."""
    fed_with_bad(sandbox)
    sandbox.configure(decode={"text": {}}, transform={"python": "gate:as_text"})
    emptying = gated(sandbox, point, "redriven", redriven="quarantined")
    sandbox.execute("UPDATE sluice_lease SET holder = NULL, expires = 0")
    sandbox.run("march", interval=days(2, 5))
    assert "'march'" in opened(emptying, 40).message
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()
    sandbox.run("again", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    deep(sandbox)
