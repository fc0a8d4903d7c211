"""Counting in the pass that writes: exact, per partition, whatever the partitions and whatever becomes of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.ranges import OffsetRange, Times
from sluice_spark.batch.tally import ReadTally
from sluice_spark.decoders.base import RULE

pytestmark = pytest.mark.spark

Key = tuple[str, int]


def tally(spark: SparkSession, folder: Path, read: Counter[Key], bad: Counter[Key], ranges: list[Key]) -> ReadTally:
    rows = [(t, p, "json" if n < bad[t, p] else None) for (t, p), count in read.items() for n in range(count)]
    frame = spark.createDataFrame(rows, f"topic STRING, partition INT, {RULE} STRING").repartition(5)
    found = ReadTally(frame, [OffsetRange(t, p, 0, read[t, p]) for t, p in ranges])
    found.frame.where(F.col(RULE).isNull()).write.parquet(str(folder / "out"))
    return found


def test_tally_counts_many_partitions_of_several_topics(spark: SparkSession, tmp_path: Path) -> None:
    keys = [(topic, p) for topic in ("b", "a", "c") for p in (*range(200), 99_999)]
    read = Counter({key: 1 + (n * 7919) % 23 for n, key in enumerate(keys)})
    bad = Counter({key: n % 3 for key, n in read.items() if n % 3})
    found = tally(spark, tmp_path, read, bad, keys)
    assert found.read() == read
    assert found.bad() == bad


@pytest.mark.parametrize(
    ("read", "bad", "ranges"),
    [
        ({("t", 0): 5000, ("t", 1): 1, ("t", 2): 1, ("t", 3): 4000}, {("t", 1): 1}, 4),
        ({}, {}, 1),
        ({("t", 1): 2}, {}, 3),
    ],
    ids=["neighbours of other sizes", "nothing", "one of three"],
)
def test_tally_counts_each_partition_alone(
    spark: SparkSession, tmp_path: Path, read: dict[Key, int], bad: dict[Key, int], ranges: int
) -> None:
    found = tally(spark, tmp_path, Counter(read), Counter(bad), [("t", n) for n in range(ranges)])
    assert (found.read(), found.bad()) == (read, bad)


PLANS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as it is": lambda rows: rows,
    "shuffled": lambda rows: rows.repartition(3),
    "sorted, which samples first": lambda rows: rows.orderBy("offset"),
    "cut by range, which samples first": lambda rows: rows.repartitionByRange(3, "offset"),
    "cut short": lambda rows: rows.limit(2),
    "numbered": lambda rows: rows.selectExpr("*", "row_number() OVER (PARTITION BY offset % 3 ORDER BY offset) AS n"),
    "joined with itself": lambda rows: rows.join(rows.groupBy("partition").agg(F.max("offset")), "partition"),
    "joined with nothing": lambda rows: rows.join(rows.sparkSession.range(0).toDF("offset"), "offset"),
    "none": lambda rows: rows.where("false"),
}


@pytest.mark.parametrize("plan", PLANS)
def test_tally_does_not_depend_on_what_transforms_make(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    gap = 7 * (len(plan) % 2)  # in half of the cases, offsets are missing
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "'t' AS topic", "spark_partition_id() AS partition", "id AS offset", f"if(id % 10 = 0, 'json', null) AS {RULE}"
    )
    found = ReadTally(frame, [OffsetRange("t", 0, 0, 500 + gap), OffsetRange("t", 1, 500, 1000)])
    PLANS[plan](found.frame.where(F.col(RULE).isNull())).write.parquet(str(tmp_path / "out"))
    assert found.read() == {("t", 0): 500, ("t", 1): 500}
    assert found.bad() == {("t", 0): 50, ("t", 1): 50}


def timed(spark: SparkSession, count: int, partitions: int, order: str) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(
        "'t' AS topic", f"cast(id % {partitions} AS int) AS partition", f"id div {partitions} AS offset",
        f"timestamp_millis(1356998400000 + {order}) AS timestamp", f"cast(null AS string) AS {RULE}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("partitions", "plan", "order"),
    [
        (1, "as it is", "id"),
        (3, "as it is", "pmod(hash(id), 100000)"),
        (3, "sorted, which samples first", "pmod(hash(id), 100000)"),
        (16, "joined with nothing", "id"),
        (40, "shuffled", "pmod(hash(id), 100000)"),
    ],
)
def test_tally_has_no_record_outside_of_its_times(
    spark: SparkSession, tmp_path: Path, partitions: int, plan: str, order: str
) -> None:
    count = 12_000 if partitions < 16 else 3_000
    frame = timed(spark, count, partitions, order)
    each = count // partitions
    kept = [(0, each // 3), (each // 2, each)]  # a stretch of each partition was left out
    ranges = [OffsetRange("t", p, *span) for p in range(partitions) for span in kept]
    rest = frame.where(f"offset < {kept[0][1]} OR offset BETWEEN {kept[1][0]} AND {each - 1}")
    found = ReadTally(rest, ranges)
    PLANS[plan](found.frame.drop("timestamp")).write.parquet(str(tmp_path / "out"))
    times = found.times()
    covered = sorted((t.range.partition, t.range.start, t.range.end) for t in times)
    assert sum(end - start for _, start, end in covered) == sum(map(len, ranges))
    rows = rest.selectExpr("partition", "offset", "unix_millis(timestamp) AS ms").toArrow().to_pylist()
    where = {(t.range.partition, o): t for t in times for o in range(t.range.start, t.range.end)}
    assert all(
        where[r["partition"], r["offset"]].first <= r["ms"] <= where[r["partition"], r["offset"]].last for r in rows
    )
    if order == "id" and partitions == 1:
        assert len({t.first for t in times}) > 2, "a partition is looked at in pieces"


def test_tally_knows_of_a_stretch_without_a_record(spark: SparkSession, tmp_path: Path) -> None:
    found = ReadTally(timed(spark, 10, 1, "id"), [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 5)])
    found.frame.write.parquet(str(tmp_path / "out"))
    first = 1356998400000
    assert found.times() == [
        Times(OffsetRange("t", 0, 0, 10), first, first + 9), Times.none(OffsetRange("t", 1, 0, 5))
    ]  # fmt: skip
