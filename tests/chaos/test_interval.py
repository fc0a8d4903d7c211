"""An interval's rows are replaced: exactly these, once, beside everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox, Sandbox, consume, good

from sluice.local.kafka import Broker, Topics

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

DAY = 86_400_000
KEPT = {"keep": "36500d"}
"""Records of 2013 are old, by Kafka's retention and by the log's."""


def at(day: int, of: int = 0) -> int:
    """Milliseconds of March 2013's day, and so many seconds on."""
    return int(datetime(2013, 3, 1, tzinfo=UTC).timestamp() * 1000) + (day - 1) * DAY + of * 1000


def days(first: int, last: int) -> tuple[str, str]:
    return f"2013-03-{first:02d}", f"2013-03-{last:02d}"


def feed_days(sandbox: Sandbox, first: int, last: int, each: int = 4) -> None:
    """Some records a day in both partitions, in the order of time."""
    for day in range(first, last):
        for n in range(each):
            number = len(sandbox.produced)
            sandbox.produce([(n % 2, b"k", good(number), at(day, 60 * n))])


def without_run(sandbox: Sandbox, path: str = "table") -> Counter[Any]:
    """The multiset of a table's rows, but for who wrote them."""
    rows = sandbox.rows(path)
    return Counter() if rows is None else Counter(map(repr, rows.drop_columns(["_run"]).to_pylist()))


def by_run(sandbox: Sandbox) -> Counter[str]:
    rows = sandbox.rows()
    assert rows is not None
    return Counter(rows.column("_run").to_pylist())


def test_an_interval_that_is_read_again_leaves_the_table_as_it_was(sandbox: Sandbox) -> None:
    feed_days(sandbox, 1, 11)
    sandbox.run("live")
    before = without_run(sandbox)
    for name in ("first", "again"):
        sandbox.run(name, interval=days(3, 6))
        assert without_run(sandbox) == before
        assert by_run(sandbox) == {"live": 28, name: 12}
        # the interval ends in the middle of a batch, of which all is read
        assert sandbox.account(name) == dict(planned=16, written=12, filtered=4, quarantined=0, absent=0, lost=0)
    sandbox.assert_exact()


def assert_audited(sandbox: Sandbox) -> None:
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr


@pytest.mark.long
def test_a_change_of_the_transform_reaches_the_interval_and_nothing_else(sandbox: Sandbox) -> None:
    """Out of order inside a partition, records that do not decode, a filter: each finds its place."""
    sandbox.configure(rows="filter", transform={"sql": "SELECT *, 1 AS version FROM source WHERE id % 10 <> 9"})
    feed_days(sandbox, 1, 5, each=6)
    late = sandbox.produce([(0, b"late", good(100), at(2, 999)), (1, b"late", b"{", at(2, 998))])
    sandbox.produce([(0, b"early", good(101), at(3, 30)), (1, b"bad", b'{"id": "x"}', at(3, 31))])
    feed_days(sandbox, 5, 7, each=6)
    sandbox.run("live")
    before, quarantined = sandbox.sink(), sandbox.quarantine()
    sandbox.configure(
        rows="filter",
        transform={"sql": "SELECT *, 2 AS version FROM source WHERE id % 10 <> 8"},
        decode={"json": {"schema": "id STRING, name STRING"}},
    )
    outcome = sandbox.run("typed otherwise", interval=days(3, 4), expect=10)
    assert "does not fit the pipeline" in outcome.message
    assert "this run replaced nothing" in outcome.message
    sandbox.configure(rows="filter", transform={"sql": "SELECT *, 2 AS version FROM source WHERE id % 10 <> 8"})
    outcome = sandbox.run("march 3", interval=days(3, 4))
    rows = sandbox.rows()
    assert rows is not None
    changed = {
        (r["_topic"], r["_partition"], r["_offset"]) for r in rows.to_pylist() if r["version"] == 2
    }  # fmt: skip
    times = {(r.topic, r.partition, r.offset): r.timestamp for r in consume(sandbox.broker, sandbox.topic)}
    inside = {o for o, time in times.items() if at(3) <= time < at(4)}
    # 12..17 of day 3, but 8 and 18; and what stands behind the first record of the 4th
    refused = {o for o in inside if times[o] == at(3, 31)}
    assert changed == inside - refused
    assert f"{sum(n for o, n in before.items() if o in inside)} rows replaced by {len(changed)}" in outcome.stderr
    assert {o: n for o, n in sandbox.sink().items() if o not in changed} == {
        o: n for o, n in before.items() if o not in inside
    }
    assert sandbox.quarantine() == quarantined
    assert_audited(sandbox)
    assert set(late) <= set(times)

    sandbox.configure(
        rows="filter",
        transform={"sql": "SELECT *, 3 AS version FROM source"},
    )
    sandbox.run("once more", interval=days(3, 4))
    rows = sandbox.rows()
    assert rows is not None
    changed = {(r["_topic"], r["_partition"], r["_offset"]) for r in rows.to_pylist() if r["version"] == 3}
    assert changed == {o for o in inside if times[o] != at(3, 31)}
    assert sandbox.sink() + sandbox.quarantine() == Counter(list(times)) - Counter(
        o for o in times if o not in before and o not in quarantined and o not in inside
    )
    assert_audited(sandbox)


def versioned(sandbox: Sandbox, number: int, **more: Any) -> None:
    sandbox.configure(transform={"sql": f"SELECT *, {number} AS version FROM source"}, **more)


def assert_replaced_by_time(sandbox: Sandbox, *replaced: tuple[int, int, int]) -> None:
    """The table holds each record once, as the last interval wrote it in which its time lies."""
    wanted = {}
    for r in consume(sandbox.broker, sandbox.topic):
        lies = [version for version, start, end in replaced if start <= r.timestamp < end]
        wanted[r.topic, r.partition, r.offset] = max(lies, default=1)
    rows = sandbox.rows()
    assert rows is not None
    columns = (rows.column(c).to_pylist() for c in ("_topic", "_partition", "_offset", "version"))
    assert Counter(zip(*columns, strict=True)) == Counter((*o, version) for o, version in wanted.items())


def text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


ORDERS: dict[str, list[list[int]]] = {
    # of each partition, in the order of offsets
    "one record of the future": [[at(1), at(25), *(at(d, n) for d in range(2, 9) for n in range(3))], [at(3)] * 9],
    "source by source": [[at(d, s) for s in range(3) for d in range(1, 9)], [at(d, s) for s in (5, 4) for d in (2, 4)]],
    "backwards": [[at(d, 9 - n) for d in range(8, 0, -1) for n in range(3)], [at(d) for d in (9, 1, 3)]],
    "at the edges": [[at(3) - 1, at(3), at(3), at(5) - 1, at(5), at(5), at(3), at(5) - 1, at(3) - 1, at(5)], []],
}
EASIER = ("one record of the future", "at the edges")


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.long)], ids=["seen", "looked at"])
@pytest.mark.parametrize(
    "order", ["source by source", "backwards", *(pytest.param(o, marks=pytest.mark.long) for o in EASIER)]
)
def test_after_an_interval_the_table_is_what_the_times_of_its_records_say(
    sandbox: Sandbox, order: str, known: bool
) -> None:
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
        assert sandbox.ledger.times(sandbox.name), "what was looked at is known from now on"
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
    assert_audited(sandbox)


def test_only_what_may_hold_records_of_the_interval_is_read(sandbox: Sandbox) -> None:
    feed_days(sandbox, 1, 11)
    sandbox.produce([(0, b"late", good(1000), at(3, 5))])
    sandbox.run("live")
    sandbox.run("march 3", interval=days(3, 4))
    row = sandbox.ledger.run(sandbox.name, "march 3")
    assert row is not None
    assert any("were not read: counted as filtered" in note for note in row.notes)
    (outside,) = (note for note in row.notes if "are outside" in note)
    assert int(outside.split(" ")[0]) < 12, "of 41, in batches of 6"
    assert by_run(sandbox) == {"live": 36, "march 3": 5}
    sandbox.assert_exact()
    assert_audited(sandbox)


def test_times_that_the_broker_gave(
    spark: SparkSession, broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2, retention_ms=-1, message_timestamp_type="LogAppendTime")
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, name, spark=spark)
    versioned(sandbox, 1)
    for n in range(8):
        sandbox.produce([(n % 2, b"k", good(n), at(9 - n))])
    sandbox.run("live")
    times = sorted(r.timestamp for r in consume(broker, name))
    versioned(sandbox, 2)
    sandbox.run("some", interval=(text(times[2]), text(times[5])))
    assert_replaced_by_time(sandbox, (2, times[2], times[5]))
    assert_audited(sandbox)


def test_rows_of_the_interval_that_kafka_dropped_are_seen_wherever_they_stand(sandbox: Sandbox) -> None:
    """A record of the interval stood far below the first of what is left."""
    versioned(sandbox, 1)
    sandbox.produce([(0, b"k", good(0), at(5))])
    feed_days(sandbox, 1, 9)
    sandbox.run("live")
    before = without_run(sandbox)
    sandbox.topics.delete_records(sandbox.topic, {0: 3})
    versioned(sandbox, 2, interval={"slack": "3d"})
    outcome = sandbox.run("march 5", interval=days(5, 6), expect=21)
    assert f"{sandbox.topic}-0 [0, 1)" in outcome.message
    assert without_run(sandbox) == before
    sandbox.run("march 6", interval=days(6, 7))
    assert_replaced_by_time_above(sandbox, before)


def assert_replaced_by_time_above(sandbox: Sandbox, before: Counter[Any]) -> None:
    rows = sandbox.rows()
    assert rows is not None
    assert rows.num_rows == sum(before.values())
    assert sum(version == 2 for version in rows.column("version").to_pylist()) == 4


def test_a_row_whose_time_was_changed_is_no_row_of_the_interval_in_silence(sandbox: Sandbox) -> None:
    feed_days(sandbox, 1, 6)
    sandbox.run("live")
    table = sandbox.table()
    assert table is not None
    offset = "_partition = 0 AND _offset = 0"
    table.update(predicate=offset, updates={"_timestamp": "_timestamp + interval '3 days'"})
    before = without_run(sandbox)
    outcome = sandbox.run("march 4", interval=days(4, 5), expect=41)
    assert f"{sandbox.topic}-0 [0, 1)" in outcome.message
    assert without_run(sandbox) == before


def test_kafka_may_have_dropped_it_when_the_log_holds_it(sandbox: Sandbox) -> None:
    sandbox.configure(recovery="wal", wal=KEPT)
    feed_days(sandbox, 1, 7)
    sandbox.run("one")
    feed_days(sandbox, 7, 11)
    sandbox.run("two")
    before = without_run(sandbox)
    sandbox.topics.delete_records(sandbox.topic, {0: 10, 1: 10})
    for name, interval, log in (("log", days(2, 4), True), ("both", days(5, 8), True), ("kafka", days(8, 10), False)):
        sandbox.run(name, interval=interval)
        assert without_run(sandbox) == before
        row = sandbox.ledger.run(sandbox.name, name)
        assert row is not None
        assert any("write-ahead log" in note for note in row.notes) == log
    assert by_run(sandbox) == {"log": 8, "both": 12, "kafka": 8, "one": 8, "two": 4}
    assert_audited(sandbox)


def test_what_nobody_has_any_more_is_refused_and_the_table_stays(sandbox: Sandbox) -> None:
    feed_days(sandbox, 1, 11)
    sandbox.run("live")
    before, version = without_run(sandbox), sandbox.table().version()  # type: ignore[union-attr]
    sandbox.topics.delete_records(sandbox.topic, {0: 5, 1: 5})
    for interval in (days(1, 2), days(2, 5), days(3, 4)):
        outcome = sandbox.run(f"gone {interval}", interval=interval, expect=21)
        assert "no longer in the source or the write-ahead log" in outcome.message
        assert "this run replaced nothing" in outcome.message
    assert (without_run(sandbox), sandbox.table().version()) == (before, version)  # type: ignore[union-attr]
    sandbox.run("before the first record", interval=("2013-02-01", "2013-03-01"))
    sandbox.run("still there", interval=days(4, 12))
    assert without_run(sandbox) == before
    assert_audited(sandbox)


def test_a_topic_made_anew_has_no_interval_of_the_old_one_and_stays_refused(sandbox: Sandbox) -> None:
    feed_days(sandbox, 1, 4)
    sandbox.run("live")
    before = without_run(sandbox)
    sandbox.topics.delete(sandbox.topic)
    sandbox.topics.create(sandbox.topic, 2, {"retention.ms": -1})
    for count in (0, 40):  # the new topic is empty, then longer than the old one was
        if count:
            sandbox.topics.produce(sandbox.topic, [(n % 2, b"k", good(n), at(1, n)) for n in range(count)])
        for interval in (days(1, 3), days(10, 12)):
            refused = sandbox.run(f"anew {count} {interval}", interval=interval, expect=22)
            assert "was recreated" in refused.message
        assert "deleted and recreated" in sandbox.run(f"live {count}", expect=22).message
    assert without_run(sandbox) == before


@pytest.mark.long
def test_a_stretch_of_markers_alone_is_no_gap_of_the_log(sandbox: Sandbox) -> None:
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
    assert_audited(sandbox)


# --- killed --------------------------------------------------------------------------------------------------------

# A group shares a run id and an interval: each kill is the attempt that has to make the one before it good.
GROUPS = {
    "before": ["run-planned", "batch-started", "rows-staged"],
    "around-the-commits": ["quarantine-staged", "before-sink-commit", "sink-committed", "quarantine-committed"],
    "behind": ["batch-recorded", "judged"],
}


def fed_with_bad(sandbox: Sandbox) -> Counter[Any]:
    """Six days, of which each has records in sink and quarantine; return the sink's rows after a live run."""
    for day in range(1, 7):
        sandbox.produce([(n % 2, b"k", good(10 * day + n) if n else b"{", at(day, 60 * n)) for n in range(4)])
    sandbox.run("live")
    return without_run(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_a_driver_killed_again_and_again_replaces_the_interval_once(sandbox: Sandbox, group: str) -> None:
    before = fed_with_bad(sandbox)
    quarantined = sandbox.quarantine()
    for point in GROUPS[group]:
        sandbox.run("march", interval=days(2, 5), kill_at=point, validate=point == "judged")
        assert without_run(sandbox) == before, f"seen after {point}"
        assert sandbox.quarantine() == quarantined, f"seen after {point}"
    sandbox.run("march", interval=days(2, 5))
    assert (without_run(sandbox), sandbox.quarantine()) == (before, quarantined)
    assert by_run(sandbox) == {"live": 9, "march": 9}
    assert sandbox.never_committed() == sandbox.never_committed("table_quarantine") == set()
    sandbox.assert_exact()
    assert_audited(sandbox)


@pytest.mark.parametrize("who", ["the live run", pytest.param("an interval that overlaps", marks=pytest.mark.long)])
def test_what_a_dead_driver_left_halfway_is_ended_by_whoever_comes_next(sandbox: Sandbox, who: str) -> None:
    fed_with_bad(sandbox)
    sandbox.configure(decode={"json": {"schema": "id BIGINT, name STRING"}}, rows="filter",
                      transform={"sql": "SELECT * FROM source WHERE id % 10 <> 3"})  # fmt: skip
    sandbox.run("march", interval=days(2, 5), kill_at="sink-committed")
    assert sandbox.ledger.replaced(sandbox.name) == []
    if who == "the live run":
        sandbox.run("next")
    else:
        sandbox.run("next", interval=days(4, 6))
    row = sandbox.ledger.run(sandbox.name, "march")
    assert row is not None
    assert row.state == "abandoned"
    account = sandbox.ledger.account(sandbox.name, "march")
    # three by the transform, and two that stand in a batch with records of the interval
    assert (account["written"], account["filtered"], account["quarantined"], account["replaced"]) == (6, 5, 3, 9)
    gone = {f"id={10 * day + 3}" for day in ((2, 3, 4) if who == "the live run" else (2, 3, 4, 5))}
    rows = sandbox.rows()
    assert rows is not None
    assert {f"id={i}" for i in rows.column("id").to_pylist()} == {
        f"id={10 * day + n}" for day in range(1, 7) for n in range(1, 4)
    } - gone
    assert set(sandbox.quarantine().values()) == {1}
    assert_audited(sandbox)


# --- beside others -------------------------------------------------------------------------------------------------


def test_intervals_and_the_live_run_write_at_the_same_time(sandbox: Sandbox) -> None:
    """Two intervals whose rows lie in the same files, and a live run: held where each has looked and not committed."""
    sandbox.configure(transform={"python": "gate:passing"})
    before = fed_with_bad(sandbox)
    gated = [
        sandbox.start(name, interval=interval, gate_at="before-sink-commit")
        for name, interval in (("one", days(1, 3)), ("two", days(3, 5)))
    ]
    for driver in gated:
        driver.await_gate()
    overlapping = sandbox.run("three", interval=days(2, 4), expect=40)
    assert "which overlaps" in overlapping.message
    assert "this run replaced nothing" in overlapping.message
    again = sandbox.run("one again", interval=days(1, 3), expect=40)
    assert "the lease is held by run 'one'" in again.message
    quarantined = sandbox.cli("redrive", str(sandbox.file), "--quarantined")
    assert quarantined.returncode == 40, quarantined.stderr
    assert "replaces the interval" in quarantined.stderr
    new = sandbox.feed(6)
    sandbox.run("live again")
    for driver in gated:
        driver.open_gate()
    for driver in gated:
        outcome = driver.wait()
        assert outcome.code == 0, outcome.stderr[-4000:]
    assert by_run(sandbox) == {"live": 6, "one": 6, "two": 6, "live again": 6}
    after = without_run(sandbox)
    assert before <= after
    assert sum(after.values()) == sum(before.values()) + len(new)
    sandbox.assert_exact()
    assert_audited(sandbox)


@pytest.mark.long
def test_an_interval_waits_for_who_empties_the_quarantine(sandbox: Sandbox) -> None:
    fed_with_bad(sandbox)
    sandbox.configure(decode={"text": {}}, transform={"sql": "SELECT 0L AS id, value AS name, _topic, _partition, "
                      "_offset, _timestamp FROM source"})  # fmt: skip
    redriven = sandbox.cli("redrive", str(sandbox.file), "--quarantined", SLUICE_KILL_AT="sink-committed")
    assert redriven.returncode != 0
    outcome = sandbox.run("march", interval=days(2, 5), expect=40)
    assert "a redrive died before it was recorded" in outcome.message
    sandbox.run("live again")
    sandbox.run("march", interval=days(2, 5))
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()
    assert_audited(sandbox)


@pytest.mark.long
def test_who_empties_the_quarantine_looks_again_before_it_commits(sandbox: Sandbox) -> None:
    """Its lease lapses, as when the ledger does not answer for a minute, and an interval is let in meanwhile."""
    fed_with_bad(sandbox)
    sandbox.configure(decode={"text": {}}, transform={"python": "gate:as_text"})
    emptying = sandbox.start("redriven", redriven="quarantined", gate_at="rows-staged")
    emptying.await_gate()
    sandbox.execute("UPDATE sluice_lease SET holder = NULL, expires = 0 WHERE scope = 'redrive'")
    sandbox.run("march", interval=days(2, 5))
    emptying.open_gate()
    ended = emptying.wait()
    assert ended.code == 40, ended.stderr[-3000:]
    assert "run 'march' committed to" in ended.message
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()
    sandbox.run("again", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    assert_audited(sandbox)


def test_beyond_the_live_position_nothing_is_touched(sandbox: Sandbox) -> None:
    none = sandbox.run("too early", interval=days(1, 3))
    assert "no live run has read anything yet" in none.stderr
    feed_days(sandbox, 1, 4)
    sandbox.run("live")
    feed_days(sandbox, 4, 8)
    sandbox.run("march", interval=days(2, 6))
    row = sandbox.ledger.run(sandbox.name, "march")
    assert row is not None
    assert any("8 offsets are beyond the live position" in note for note in row.notes)
    assert by_run(sandbox) == {"live": 4, "march": 8}
    sandbox.run("live again")
    sandbox.run("march again", interval=days(2, 6))
    assert by_run(sandbox) == {"live": 4, "march again": 16, "live again": 8}
    sandbox.assert_exact()
    assert_audited(sandbox)
