"""The interface between a run and its source: records as a stream, and by ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

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

if TYPE_CHECKING:
    from sluice_spark.engine.failures import Sign

__all__ = ["RECORD_SCHEMA", "Foreseeable", "Records", "SourceReader", "StreamReader", "within"]

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
"""The columns of a record of any source: those of Spark's Kafka source. ``topic`` is the name of the stream."""


class Records(Protocol):
    """Reads records by their offsets: from a replayable source, or from the write-ahead log."""

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, in :data:`RECORD_SCHEMA`, including headers."""

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that can no longer be read."""

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Raise if the number of records that were read is not the known number of records."""

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Return the typed error behind a job that read these ranges and failed; an error that is typed stays."""


class StreamReader(Protocol):
    """Reads records as a bounded stream."""

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
        """Return the stream of all records, in :data:`RECORD_SCHEMA`, with at most about ``max_records`` per batch.

        It supports ``availableNow``, and its offsets are ``{stream: {partition: next offset}}`` as JSON.

        Parameters
        ----------
        start
            Where an empty checkpoint starts; None means the pipeline file's ``starting_offsets``. Partitions of
            ``states`` that are missing in it are read from their beginning.
        headers
            Whether the column ``headers`` is needed.
        over_gaps
            Whether to read what the source still has if it removed a part of a range; the caller finds out which part.
            Otherwise such a range ends the query.
        """


class SourceReader(Records, StreamReader, Protocol):
    """The Spark half of a source: its records as a bounded stream, and by ranges."""


@runtime_checkable
class Foreseeable(Protocol):
    """A source that knows how Spark will divide its records into batches."""

    def batch_end(self, start: Positions, ends: Positions, limit: int) -> Positions:
        """Return where a batch ends.

        Parameters
        ----------
        start
            Where it starts.
        ends
            Where the stream's records end.
        limit
            The ``max_records`` of the stream.
        """


def within(ranges: Sequence[OffsetRange], prefix: str = "") -> Column:
    """Return the condition that a record, with Kafka's columns, is in one of these ranges.

    Parameters
    ----------
    prefix
        What the names of the columns begin with: ``_`` for the sink's rows.
    """
    topic, partition, offset = (F.col(f"{prefix}{name}") for name in ("topic", "partition", "offset"))
    inside = F.lit(False)
    for r in ranges:
        here = (topic == r.topic) & (partition == r.partition)
        inside = inside | (here & offset.between(r.start, r.end - 1))
    return inside
