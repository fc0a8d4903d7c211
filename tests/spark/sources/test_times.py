"""Times of records by pieces of their ranges: no record lies outside of what is told, and empty pieces say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.wal import span

from sluice.ranges import OffsetRange, Times
from sluice_spark.sources.base import RECORD_SCHEMA, within
from sluice_spark.sources.times import times_of

pytestmark = pytest.mark.spark

ZERO = datetime(2013, 1, 1, tzinfo=UTC)
START = int(ZERO.timestamp() * 1000)

At = tuple[int, int, int]
"""Partition, offset, milliseconds behind :data:`START`."""


class Records:
    """A few records at their times."""

    def __init__(self, spark: SparkSession, records: Sequence[At]) -> None:
        rows = [(None, None, None, "t", p, o, ZERO + timedelta(milliseconds=ms), 0) for p, o, ms in records]
        self.frame = spark.createDataFrame(rows, RECORD_SCHEMA).coalesce(1)

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        return self.frame.where(within(ranges))

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        raise AssertionError("is not asked")

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> Any:
        raise AssertionError("is not asked")


def known(start: int, end: int, first: int, last: int, partition: int = 0) -> Times:
    return Times(span(start, end, partition), START + first, START + last)


def test_each_piece_has_the_first_and_the_last_time_of_its_own_records(spark: SparkSession) -> None:
    source = Records(
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


def test_a_range_without_a_record_says_that_it_has_none(spark: SparkSession) -> None:
    source = Records(spark, [(0, 500, 1)])
    assert times_of(source, [span(0, 500), span(0, 501, 1)]) == [Times.none(span(0, 500)), Times.none(span(0, 501, 1))]


def test_very_long_ranges_are_told_in_about_a_thousand_pieces_that_leave_nothing_out(spark: SparkSession) -> None:
    last = 40_000_123
    source = Records(spark, [(0, 77, 5), (0, last, 9)])
    told = times_of(source, [span(50, last + 1)])
    assert 900 < len(told) <= 1_001
    assert [t.range.start for t in told] == [50, *(t.range.end for t in told[:-1])]
    assert told[-1].range.end == last + 1
    assert [t for t in told if t != Times.none(t.range)] == [
        Times(told[0].range, START + 5, START + 5), Times(told[-1].range, START + 9, START + 9),
    ]  # fmt: skip
