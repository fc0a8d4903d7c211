"""Times of records by pieces of their ranges: no record lies outside of them, and empty pieces say so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.held import Held
from tests.fixtures.wal import span

from sluice.ranges import Times
from sluice_spark.sources.base import RECORD_SCHEMA
from sluice_spark.sources.times import times_of

pytestmark = pytest.mark.spark

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
