"""A cached batch gives its records without a read of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.wal import frame, record, span

from sluice.ranges import OffsetRange
from sluice_spark.sources.held import HeldRecords, HeldWhenRead

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
