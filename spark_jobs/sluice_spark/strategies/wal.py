"""Strategy ``wal``, the Spark side: lands records verbatim, and reads them back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
from pyspark.sql import DataFrame, SparkSession
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

from sluice.errors import BEGIN_ANEW, LeaseHeldError, OffsetsGoneError, SinkError
from sluice.faults import point
from sluice.ranges import OffsetRange, describe
from sluice.wal import DamagedLogError, Segment, WriteAheadLog
from sluice.wal.log import SEAL, seal_text
from sluice.wal.segment import inspect, spread
from sluice_spark.sinks.delta.staged import Staged
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sources.base import Records, within

__all__ = ["LOG_SCHEMA", "Landed", "Landing", "LogRecords", "landing_size"]

LOG_SCHEMA = StructType(
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
"""The log's columns: those of Spark's Kafka source, as they are."""

_WRITER = {"compression": "snappy", "parquet.page.write-checksum.enabled": "true"}

_VERIFY = {"parquet.page.verify-checksum.enabled": "true"}


@dataclass(frozen=True)
class Landed:
    """A batch in files that nobody sees yet."""

    staged: Staged
    segments: tuple[Segment, ...]
    ranges: tuple[OffsetRange, ...]
    seconds: float


_FEWEST = 1000
"""Records that a landing may take however slow the last one was: smaller ones would only cost more."""


def landing_size(notes: Sequence[Mapping[str, Any]], roll: float, most: int) -> int:
    """Return how many records a landing may take so that it is sealed in time; pure.

    Parameters
    ----------
    notes
        Of the newest seals.
    roll
        Seconds within which a segment is to be sealed.
    most
        How many records a batch may have in any case.

    Notes
    -----
    The largest tells the pace: the newest is, as a rule, what was left at the end of a run. One that took less than
    half of the time says nothing: it may have been a small one.
    """
    landings = ((sum(s["records"] for s in note["segments"]), note["seconds"]) for note in notes)
    records, seconds = max(landings, default=(0, 0.0))
    if seconds < roll / 2:
        return most
    return min(most, max(_FEWEST, int(records / seconds * roll)))


@dataclass(frozen=True)
class Landing:
    """Lands the batches of one epoch in the write-ahead log.

    Parameters
    ----------
    table
        The log as a Delta table, under the epoch's application id.
    source
        Asked whether offsets without a record are gone.
    segment_records
        How many records a segment holds at most.
    """

    pipeline: str
    run: str
    table: DeltaSink
    source: Records
    segment_records: int

    def stage(self, records: DataFrame, name: str, ranges: Sequence[OffsetRange]) -> Landed:
        """Write a batch's records to segments. Seals nothing.

        Raises
        ------
        OffsetsGoneError
            When Kafka dropped records of these ranges before they were read.
        """
        began = time.monotonic()
        options = {**_WRITER, "maxRecordsPerFile": str(self.segment_records)}
        staged = self.table.stage(records.select(*LOG_SCHEMA.names), name, offsets=False, options=options)
        fs, root = fsspec.core.url_to_fs(self.table.path)
        segments = tuple(spread([inspect(fs, root, file.path) for file in staged.files], ranges))
        point("segments-staged")
        gone = self.source.gone([r for r in ranges if _records(segments, r) < len(r)])
        if gone:
            raise OffsetsGoneError(
                f"pipeline {self.pipeline!r}: Kafka dropped records before they were in the write-ahead log: "
                f"{describe(gone)}",
                state="what was sealed before is in the log and is applied; nothing of this batch is sealed",
                next_step="run with --recovery ignore_range: it records them as lost and goes on. Raise the topic's "
                f"retention, or run more often. With rows: aggregate the strategy stays what it was: {BEGIN_ANEW}",
                ranges=gone,
            )
        if staged.folder and staged.files:
            with fs.open(f"{root}/{staged.folder}/{SEAL}", "wb") as file:
                file.write(seal_text(segments).encode())
        return Landed(staged, segments, tuple(ranges), time.monotonic() - began)

    def seal(self, batch: int, landed: Landed) -> None:
        """Make a staged batch part of the log, in one durable commit.

        Raises
        ------
        LeaseHeldError
            When another driver sealed this batch first.
        """
        point("before-seal")
        note = {
            "pipeline": self.pipeline,
            "run": self.run,
            "ranges": [[r.topic, r.partition, r.start, r.end] for r in landed.ranges],
            "segments": [s.as_dict() for s in landed.segments],
            "seconds": round(landed.seconds, 3),
        }
        if not self.table.commit(landed.staged, LOG_SCHEMA, batch, note):
            raise LeaseHeldError(
                f"another driver sealed batch {batch} of {self.table.path} first",
                state="the batch is in the log once; this driver's files are not part of it",
                next_step="run again: the next run goes on behind it",
            )
        point("sealed")


@dataclass(frozen=True)
class LogRecords:
    """Records by their offsets from sealed segments.

    Parameters
    ----------
    segments
        Handles of all segments that may be asked for; others are never opened.
    """

    spark: SparkSession
    log: WriteAheadLog
    segments: tuple[Segment, ...]

    def again(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges. Each page is checked by its checksum as it is read.

        Raises
        ------
        DamagedLogError
            When a segment is missing, cut, or its footer is garbled. What is garbled inside shows when it is read.
        """
        chosen = [s for s in self.segments if any(s.range.cut(r) for r in ranges)]
        if self.log.check(chosen):
            self.explain(ranges)  # names what is garbled inside, too
        if not chosen:
            return self.spark.createDataFrame([], LOG_SCHEMA)
        files = [f"{self.log.path}/{s.path}" for s in chosen]
        frame = self.spark.read.schema(LOG_SCHEMA).options(**_VERIFY).parquet(*files)
        whole = all(_covered(s.range, ranges) for s in chosen)
        return frame if whole else frame.where(within(ranges))

    def gone(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return nothing: that was settled when they were landed."""
        return []

    def check(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Compare what was read with what was sealed, where whole segments were read."""
        chosen = [s for s in self.segments if any(s.range.cut(r) for r in ranges)]
        if not all(_covered(s.range, ranges) for s in chosen):
            return
        sealed: dict[tuple[str, int], int] = {}
        for s in chosen:
            key = (s.range.topic, s.range.partition)
            sealed[key] = sealed.get(key, 0) + s.records
        if {k: n for k, n in read.items() if n} != {k: n for k, n in sealed.items() if n}:
            self.explain(ranges)
            raise SinkError(
                f"the write-ahead log {self.log.path} gave {sum(read.values())} records where "
                f"{sum(sealed.values())} were sealed",
                state="nothing of this batch is visible in the sink",
                next_step="run again; if it stays, look at the log's storage",
            )

    def explain(self, ranges: Sequence[OffsetRange]) -> None:
        """Read every page of the segments of these ranges.

        Raises
        ------
        DamagedLogError
            When one is not as it was sealed; it names all of them.
        """
        damages = self.log.check([s for s in self.segments if any(s.range.cut(r) for r in ranges)], pages=True)
        if damages:
            raise self._damaged(damages)

    def _damaged(self, damages: Sequence[Any]) -> DamagedLogError:
        return DamagedLogError(
            self.log.pipeline,
            damages,
            next_step="restore the files from a copy and run again. Without one: --recovery replay reads these "
            "offsets from Kafka while it has them; --recovery ignore_range records them as lost and goes on. With "
            f"rows: aggregate the strategy stays what it was: {BEGIN_ANEW}",
        )


def _records(segments: Sequence[Segment], span: OffsetRange) -> int:
    return sum(s.records for s in segments if s.range.cut(span))


def _covered(span: OffsetRange, ranges: Sequence[OffsetRange]) -> bool:
    return sum(len(common) for r in ranges if (common := span.cut(r))) == len(span)
