"""Reads ranges of the write-ahead log from its segments, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.ranges import OffsetRange
from sluice.storage import file_system
from sluice.wal.segment import Segment, rows_of
from sluice_spark.sources.inputs import RECORDS, Headers, UnreadableError

__all__ = ["LogChunk", "LogInput", "LogRanges"]

_RECORDS = 10_000


@dataclass(frozen=True)
class LogChunk:
    """Some records of one partition, in the order of their offsets."""

    rows: pa.Table
    offsets: Any
    """Ascending, as a NumPy array."""
    times: Any
    """Record times in milliseconds since 1970; negative where the record has none."""

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        values: list[bytes | None] = self.rows.column("value").to_pylist()
        return values

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        keys: list[bytes | None] = self.rows.column("key").to_pylist()
        return keys

    def headers(self) -> list[Headers]:
        """Return the headers of each record, in their order."""
        given = self.rows.column("headers").to_pylist()
        return [None if own is None else [(h["key"], h["value"]) for h in own] for own in given]

    def chosen(self, numbers: Any) -> LogChunk:
        """Return the records with these numbers in the chunk, which ascend."""
        return LogChunk(self.rows.take(pa.array(numbers)), self.offsets[numbers], self.times[numbers])

    def records(self) -> pa.Table:
        """Return the records as they are."""
        return self.rows.select(RECORDS.names).cast(RECORDS)


@dataclass(frozen=True)
class LogInput:
    """Segments of a write-ahead log.

    Parameters
    ----------
    path
        Path or URL of the log.
    segments
        Handles of all segments that may be needed; others are never opened.
    whole
        Whether the segments must account for each offset that is read. A range of a sealed batch in which the source
        had no record has no segment.
    """

    path: str
    segments: tuple[Segment, ...]
    whole: bool = True

    def opened(self) -> AbstractContextManager[LogRanges]:
        """Open nothing: each segment is opened when it is needed."""
        return nullcontext(LogRanges(self))


@dataclass(frozen=True)
class LogRanges:
    """Reads one range after another. Each page's checksum is verified."""

    source: LogInput

    def read(self, span: OffsetRange) -> Iterator[LogChunk]:
        """Yield the records of a range.

        Raises
        ------
        UnreadableError
            If a segment is damaged or missing. Chunks that were yielded before are right.
        """
        fs, root = file_system(self.source.path)
        here = [(s, common) for s in self.source.segments if (common := s.range.cut(span)) is not None]
        at = span.start
        for segment, part in sorted(here, key=lambda pair: pair[1]):
            if part.start != at and self.source.whole:
                break
            try:
                for rows in rows_of(fs, root, segment, part.start, part.end, _RECORDS):
                    yield _chunk(pa.Table.from_batches([rows]), part)
            except (OSError, ValueError) as error:
                raise UnreadableError(f"{segment} cannot be read: {error}") from error
            at = part.end
        if at != span.end and self.source.whole:
            raise UnreadableError(f"the write-ahead log does not have the offsets from {at} on")


def _chunk(rows: pa.Table, span: OffsetRange) -> LogChunk:
    time = rows.schema.field("timestamp").type
    if not pa.types.is_timestamp(time) or time.unit == "ns":
        raise UnreadableError(f"record times are {time}")  # of an old log; nanoseconds may have overflowed
    offsets = rows.column("offset").to_numpy()
    if offsets[0] < span.start or offsets[-1] >= span.end or (np.diff(offsets) <= 0).any():
        raise UnreadableError("offsets do not ascend")
    partitions = rows.column("partition").to_numpy()
    topics = rows.column("topic").unique().to_pylist()
    if topics != [span.topic] or (partitions != span.partition).any():
        raise UnreadableError("there are records of another partition")
    milliseconds = rows.column("timestamp").cast(pa.timestamp("ms", time.tz), safe=False)
    return LogChunk(rows, offsets, milliseconds.cast(pa.int64()).to_numpy())
