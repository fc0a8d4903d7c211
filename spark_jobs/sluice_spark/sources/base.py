"""What a run asks of the place that its records come from: in batches, and as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sluice.errors import SluiceError
from sluice.ranges import OffsetRange, Positions
from sluice.sources.state import TopicState
from sluice_spark.engine.failures import Sign

__all__ = ["RECORD_SCHEMA", "Records", "SourceReader", "within"]

RECORD_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
"""The columns of a record, whatever its source: those of Spark's Kafka source. ``topic`` names the stream."""


class Records(Protocol):
    """Where a batch's records can be had by their offsets: a source that is replayable, or the write-ahead log."""

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, in :data:`RECORD_SCHEMA`, headers included."""

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that are no longer there."""

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Raise when fewer or more records were read than are known to be there."""

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Return the typed error behind a job that read these ranges and failed; an error that is typed stays."""


class SourceReader(Records, Protocol):
    """The Spark half of a source: its records as a bounded stream, and single ranges again."""

    @property
    def signs(self) -> Sequence[Sign]:
        """How Spark's messages show that the source itself failed; the first that fits decides.

        A broken checkpoint is recognized before them, failing storage after them.
        """

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        """Return the stream of all records, in :data:`RECORD_SCHEMA`, with at most about ``max_records`` a batch.

        It can be drained with ``availableNow``, and its offsets are ``{stream: {partition: next offset}}`` as JSON.

        Parameters
        ----------
        start
            Where a checkpoint that is still empty starts; None for what the pipeline file says. Partitions among
            ``states`` that it does not name are read from their beginning.
        headers
            Whether the column ``headers`` must be there.
        over_gaps
            Go on with what the source still has when it dropped some of a range; the caller finds out what. Otherwise
            such a range ends the query.
        """


def within(ranges: Sequence[OffsetRange]) -> Column:
    """Return the condition that a record of Kafka's columns lies in one of these ranges."""
    inside = F.lit(False)
    for r in ranges:
        here = (F.col("topic") == r.topic) & (F.col("partition") == r.partition)
        inside = inside | (here & F.col("offset").between(r.start, r.end - 1))
    return inside
