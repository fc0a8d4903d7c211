"""Cached batches give their records without a read of Kafka, and ranges the times of their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.held import Held
from tests.fixtures.wal import frame, record, span

from sluice.ranges import OffsetRange, Times
from sluice_spark.sources.base import RECORD_SCHEMA
from sluice_spark.sources.held_records import HeldRecords, HeldWhenRead
from sluice_spark.sources.times import times_of

pytestmark = pytest.mark.spark


class Kafka:
    """A source that knows of lost offsets, and must not be read."""

    def __init__(self) -> None:
        self.verified: list[Any] = []

    def read(self, ranges: Sequence[OffsetRange]) -> Any:
        raise AssertionError("was read")

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        return [OffsetRange(r.topic, r.partition, r.start, r.start + 1) for r in ranges]

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        self.verified.append((read, ranges))


def test_held_records_gives_exactly_the_records_of_ranges(spark: SparkSession) -> None:
    headers = [{"key": "h", "value": b"\x00"}]
    records = [record(o, p, topic) for topic in ("t", "u") for p in (0, 1) for o in range(8)]
    records[3]["headers"] = headers
    held = HeldRecords(frame(spark, records), Kafka())
    found = held.read([span(3, 5), span(7, 9), span(0, 1, 1), span(2, 4, 0, "u")]).collect()
    assert sorted((row.topic, row.partition, row.offset) for row in found) == [
        ("t", 0, 3), ("t", 0, 4), ("t", 0, 7), ("t", 1, 0), ("u", 0, 2), ("u", 0, 3),
    ]  # fmt: skip
    (row,) = held.read([span(3, 4)]).collect()
    assert (bytes(row.value), [h.asDict() for h in row.headers]) == (b"3", headers)
    assert held.read([]).collect() == []


def test_held_records_asks_the_source_what_is_gone(spark: SparkSession) -> None:
    kafka = Kafka()
    held = HeldRecords(frame(spark, [record(3)]), kafka)
    assert held.missing([span(3, 5)]) == [span(3, 4)]
    held.verify({("t", 0): 1}, [span(3, 4)])
    assert kafka.verified == [({("t", 0): 1}, [span(3, 4)])]


def test_held_when_read_reads_once(spark: SparkSession) -> None:
    kept: list[DataFrame] = []

    class Source(Kafka):
        def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
            return frame(spark, [record(o) for r in ranges for o in range(r.start, r.end)])

    def hold(records: DataFrame) -> DataFrame:
        kept.append(records)
        return records

    held = HeldWhenRead(Source(), hold)
    assert not kept
    assert {r.offset for r in held.read([span(2, 6), span(8, 9)]).collect()} == {2, 3, 4, 5, 8}
    assert {r.offset for r in held.read([span(3, 5)]).collect()} == {3, 4}
    assert {r.offset for r in held.read([span(8, 9), span(2, 3)]).collect()} == {2, 8}
    assert len(kept) == 1
    assert {r.offset for r in held.read([span(5, 8)]).collect()} == {5, 6, 7}
    assert len(kept) == 2


ZERO = datetime(2013, 1, 1, tzinfo=UTC)
START = int(ZERO.timestamp() * 1000)

At = tuple[int, int, int]
"""Partition, offset, milliseconds behind :data:`START`."""


def held(spark: SparkSession, records: Sequence[At]) -> Held:
    """Return a few records at their times."""
    rows = [(None, None, None, "t", p, o, ZERO + timedelta(milliseconds=ms), 0) for p, o, ms in records]
    return Held(spark.createDataFrame(rows, RECORD_SCHEMA).coalesce(1))


def known(start: int, end: int, first: int, last: int, partition: int = 0) -> Times:
    return Times(span(start, end, partition), START + first, START + last)


def test_times_of_each_piece_are_those_of_its_records(spark: SparkSession) -> None:
    source = held(
        spark,
        [(0, 9_000, 50), (0, 9_001, -7), (0, 9_999, 8), (0, 10_000, 100), (0, 25_000, 3), (1, 9_500, 999), (0, 5, 77)],
    )
    assert times_of(source, [span(9_000, 32_000), span(9_000, 9_600, 1)]) == [
        known(9_000, 10_000, -7, 50),
        known(10_000, 20_000, 100, 100),
        known(20_000, 30_000, 3, 3),
        Times.none(span(30_000, 32_000)),
        known(9_000, 9_600, 999, 999, 1),
    ]


def test_times_of_a_range_without_a_record_are_none(spark: SparkSession) -> None:
    source = held(spark, [(0, 500, 1)])
    assert times_of(source, [span(0, 500), span(0, 501, 1)]) == [Times.none(span(0, 500)), Times.none(span(0, 501, 1))]


def test_times_of_very_long_ranges_have_a_thousand_pieces(spark: SparkSession) -> None:
    last = 40_000_123
    source = held(spark, [(0, 77, 5), (0, last, 9)])
    pieces = times_of(source, [span(50, last + 1)])
    assert 900 < len(pieces) <= 1_001
    assert [t.range.start for t in pieces] == [50, *(t.range.end for t in pieces[:-1])]
    assert pieces[-1].range.end == last + 1
    assert [t for t in pieces if t != Times.none(t.range)] == [
        Times(pieces[0].range, START + 5, START + 5), Times(pieces[-1].range, START + 9, START + 9),
    ]  # fmt: skip
