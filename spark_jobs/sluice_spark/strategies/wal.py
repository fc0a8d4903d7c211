"""Strategy ``wal``, first step: lands records verbatim in the write-ahead log."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sluice.errors import START_OVER, OffsetsGoneError, SluiceError
from sluice.faults import point
from sluice.ranges import OffsetRange, describe
from sluice.storage import file_system
from sluice.wal import Segment
from sluice.wal.catalog import SEAL, seal_text
from sluice.wal.segment import inspect, spread
from sluice_spark.arrow.path import ArrowCopies
from sluice_spark.batch.batch_size import fitting
from sluice_spark.engine.code_generation import compiled
from sluice_spark.sinks.base import Staged, overtaken
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sources.base import RECORD_SCHEMA, Records

__all__ = ["Landed", "Landing", "landing_size"]

_WRITER = {"compression": "snappy", "parquet.page.write-checksum.enabled": "true"}


@dataclass(frozen=True)
class Landed:
    """A batch in staged files, which are not part of the log yet."""

    staged: Staged
    segments: tuple[Segment, ...]
    ranges: tuple[OffsetRange, ...]
    seconds: float


def landing_size(notes: Sequence[Mapping[str, Any]], roll: float, most: int) -> int:
    """Return how many records a landing may take so that it is sealed in time; pure.

    Parameters
    ----------
    notes
        The commit metadata of the newest seals.
    roll
        Seconds within which a segment should be sealed.
    most
        The maximum number of records in a batch.
    """
    landings = ((sum(s["records"] for s in note["segments"]), note["seconds"]) for note in notes)
    return fitting(landings, roll, most)


@dataclass(frozen=True)
class Landing:
    """Lands the batches of one epoch in the write-ahead log.

    Parameters
    ----------
    table
        The log as a Delta table, under the epoch's application id.
    source
        Reads the records again, and says whether offsets without a record are gone.
    segment_records
        Maximum number of records in a segment.
    copies
        Writes segments without Spark, and rows of the sink from the same reading, as far as it can; None means that
        Spark writes all segments.
    """

    pipeline: str
    run_id: str
    table: DeltaSink
    source: Records
    segment_records: int
    copies: ArrowCopies | None = None

    def stage(self, records: DataFrame, name: str, ranges: Sequence[OffsetRange], batch: str) -> Landed:
        """Write a batch's records to segments, without sealing them.

        Parameters
        ----------
        records
            The batch's records. They are not used if they can be copied from the source without Spark.
        name
            The name of the batch in the log.
        batch
            Its name in the sink.

        Raises
        ------
        OffsetsGoneError
            If the source removed records of these ranges before they were read.
        """
        began = time.monotonic()
        staged = None
        if self.copies is not None:
            staged = self.copies.stage(self.table.path, name, ranges, self.source, self.segment_records, batch)
        if staged is None:
            if self.copies is not None:
                compiled(records, self.copies.spark)  # it was not meant to be executed
            options = {**_WRITER, "maxRecordsPerFile": str(self.segment_records)}
            try:
                staged = self.table.stage(records.select(*RECORD_SCHEMA.names), name, offsets=False, options=options)
            except SluiceError:
                raise
            except Exception as error:
                raise self.source.diagnose(error, ranges) from error
        fs, root = file_system(self.table.path)
        segments = tuple(spread([inspect(fs, root, file.path) for file in staged.files], ranges))
        point("segments-staged")
        gone = self.source.missing([r for r in ranges if _records(segments, r) < len(r)])
        if gone:
            raise OffsetsGoneError(
                f"pipeline {self.pipeline!r}: the source removed records before they were in the write-ahead log: "
                f"{describe(gone)}",
                state="batches that were sealed before are in the log and are applied; nothing of this batch is sealed",
                next_step="run with --recovery ignore_range: it records them as lost and goes on. Raise the topic's "
                f"retention, or run more often. With rows: aggregate the strategy cannot be changed: {START_OVER}",
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
            If another driver sealed this batch first.
        """
        point("before-seal")
        note = {
            "pipeline": self.pipeline,
            "run": self.run_id,
            "ranges": [r.as_list() for r in landed.ranges],
            "segments": [s.as_dict() for s in landed.segments],
            "seconds": round(landed.seconds, 3),
        }
        if not self.table.commit(landed.staged, RECORD_SCHEMA, batch, note):
            raise overtaken(
                f"sealed batch {batch} of {self.table.path}",
                state="the batch is in the log once; this driver's files are not part of it",
                next_step="run again: the next run continues after that batch",
            )
        point("sealed")


def _records(segments: Sequence[Segment], span: OffsetRange) -> int:
    return sum(s.records for s in segments if s.range.cut(span))
