"""What a batch asks of the place that its records come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.ranges import OffsetRange

__all__ = ["Records", "within"]


class Records(Protocol):
    """Where a batch's records can be had by their offsets: Kafka, or the write-ahead log."""

    def again(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, in the columns of Spark's Kafka source, headers included."""

    def gone(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that are no longer there."""

    def check(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Raise when fewer or more records were read than are known to be there."""


def within(ranges: Sequence[OffsetRange]) -> Column:
    """Return the condition that a record of Kafka's columns lies in one of these ranges."""
    inside = F.lit(False)
    for r in ranges:
        here = (F.col("topic") == r.topic) & (F.col("partition") == r.partition)
        inside = inside | (here & F.col("offset").between(r.start, r.end - 1))
    return inside
