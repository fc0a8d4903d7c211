"""A segment: one sealed file of the write-ahead log, and its handle."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sluice.errors import OffsetsGoneError
from sluice.ranges import OffsetRange

__all__ = ["Damage", "DamagedLogError", "Segment", "batch_of", "inspect", "is_segment", "rows_of", "spread"]

_PATH = re.compile(r"batches/e\d+-\d+-[^/]+/[^/]+")

_UNITS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
"""Units of Parquet's timestamps in a millisecond."""


@dataclass(frozen=True)
class Segment:
    """The handle of a segment: its file, offsets, size and checksum.

    Attributes
    ----------
    path
        The Parquet file, below the log's root.
    range
        The offsets that it accounts for. Its records are in the order of offsets; offset gaps (transaction markers,
        compaction) have no record.
    length
        Size of the file in bytes.
    records
        Number of records in the file.
    first, last
        Earliest and latest record time, milliseconds since 1970 (UTC).
    footer
        CRC-32 of the Parquet footer. Pages have a CRC-32 of their own in the file.
    """

    path: str
    range: OffsetRange
    length: int
    records: int
    first: int
    last: int
    footer: int

    @property
    def epoch(self) -> int:
        """The epoch in which it was landed."""
        return batch_of(self.path)[0]

    @property
    def batch(self) -> int:
        """The batch that landed it."""
        return batch_of(self.path)[1]

    def __str__(self) -> str:
        return f"segment {self.path} of {self.range}"

    def as_dict(self) -> dict[str, Any]:
        """Return a flat JSON-ready form; :meth:`from_dict` reads it."""
        return {**{k: v for k, v in asdict(self).items() if k != "range"}, **asdict(self.range)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Segment:
        """Read what :meth:`as_dict` wrote."""
        span = OffsetRange.of(data)
        numbers = {k: int(data[k]) for k in ("length", "records", "first", "last", "footer")}
        return cls(path=str(data["path"]), range=span, **numbers)


def batch_of(path: str) -> tuple[int, int]:
    """Return the epoch and the batch of a segment's path below the log's root."""
    # batches/e3-000017-0a1b2c3d/part-….parquet
    epoch, batch, _ = path.split("/")[1].split("-", 2)
    return int(epoch.removeprefix("e")), int(batch)


def is_segment(path: str) -> bool:
    """Return whether a file of the log is a sealed segment, not a file that another program wrote."""
    return _PATH.fullmatch(path) is not None


@dataclass(frozen=True)
class Damage:
    """A segment that cannot be read as it was written."""

    segment: Segment
    what: str

    def __str__(self) -> str:
        return f"{self.segment} is {self.what}"


class DamagedLogError(OffsetsGoneError):
    """Segments of the write-ahead log are truncated, corrupt or missing; :attr:`ranges` has their offsets."""

    def __init__(self, pipeline: str, damages: Sequence[Damage], *, next_step: str) -> None:
        shown = "; ".join(str(d) for d in damages[:4]) + (f" and {len(damages) - 4} more" if len(damages) > 4 else "")
        super().__init__(
            f"pipeline {pipeline!r}: the write-ahead log is damaged: {shown}",
            state="what was applied before is in the sink; nothing of the damaged batch is, and nothing was skipped",
            next_step=next_step,
            ranges=[d.segment.range for d in damages],
        )
        self.damages = tuple(damages)


def inspect(fs: Any, root: str, path: str) -> Segment:
    """Return the handle of a file that was just written, from its footer.

    Raises
    ------
    ValueError
        If it does not hold records of exactly one partition.
    """
    import pyarrow.parquet as pq

    with fs.open(f"{root}/{path}", "rb") as handle:
        parquet = pq.ParquetFile(handle)
        low: dict[str, Any] = {}
        high: dict[str, Any] = {}
        names = {parquet.metadata.schema.column(i).path: i for i in range(len(parquet.metadata.schema))}
        for name in ("topic", "partition", "offset", "timestamp"):
            stats = [
                parquet.metadata.row_group(g).column(names[name]).statistics
                for g in range(parquet.metadata.num_row_groups)
            ]
            # raw: a producer's timestamp may be outside of Python's range
            raw = name == "timestamp"
            low[name] = min(s.min_raw if raw else s.min for s in stats)
            high[name] = max(s.max_raw if raw else s.max for s in stats)
        if (low["topic"], low["partition"]) != (high["topic"], high["partition"]):
            raise ValueError(f"{path} holds records of more than one partition")
        length = fs.size(f"{root}/{path}")
        span = OffsetRange(low["topic"], low["partition"], low["offset"], high["offset"] + 1)
        unit = _UNITS[parquet.schema_arrow.field("timestamp").type.unit]
        times = (low["timestamp"] // unit, high["timestamp"] // unit)
        return Segment(path, span, length, parquet.metadata.num_rows, *times, footer_of(handle, length))


def rows_of(fs: Any, root: str, segment: Segment, start: int, end: int, size: int = 65_536) -> Iterator[Any]:
    """Yield the records of a segment between two offsets as Arrow batches, without reading row groups outside of them.

    Parameters
    ----------
    size
        Maximum number of records in a batch.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is no Parquet file any more, or a page fails its checksum.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with fs.open(f"{root}/{segment.path}", "rb") as handle:
            parquet = pq.ParquetFile(handle, page_checksum_verification=True)
            leaf = next(i for i in range(len(parquet.schema)) if parquet.metadata.schema.column(i).path == "offset")
            for group in range(parquet.num_row_groups):
                stats = parquet.metadata.row_group(group).column(leaf).statistics
                if stats.max < start or stats.min >= end:
                    continue
                for rows in parquet.iter_batches(size, row_groups=[group]):
                    if stats.min < start or stats.max >= end:
                        offsets = rows.column("offset")
                        rows = rows.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
                    if rows.num_rows:
                        yield rows
    except (pa.ArrowException, MemoryError) as error:  # some of these are neither OSError nor ValueError
        raise ValueError(str(error)) from error


def footer_of(handle: Any, length: int) -> int:
    """Return the CRC-32 of a Parquet file's footer, including its length and the closing magic.

    Raises
    ------
    ValueError
        If the file does not end like a Parquet file.
    """
    handle.seek(length - 8)
    size, magic = struct.unpack("<I4s", handle.read(8))
    if magic != b"PAR1" or size + 12 > length:
        raise ValueError("no Parquet footer at its end")
    handle.seek(length - 8 - size)
    return zlib.crc32(handle.read(size + 8))


def spread(segments: Sequence[Segment], ranges: Sequence[OffsetRange]) -> list[Segment]:
    """Return the segments of a batch, widened to cover the planned ranges without gap or overlap.

    Raises
    ------
    ValueError
        If a segment reaches beyond its range, or two overlap.
    """
    found = []
    for span in ranges:
        here = sorted(
            (s for s in segments if (s.range.topic, s.range.partition) == (span.topic, span.partition)),
            key=lambda s: s.range.start,
        )
        start = span.start
        for number, item in enumerate(here):
            end = here[number + 1].range.start if number + 1 < len(here) else span.end
            if item.range.start < start or item.range.end > end:
                raise ValueError(f"{item} does not fit into {span}")
            found.append(replace(item, range=OffsetRange(span.topic, span.partition, start, end)))
            start = end
    if len(found) != len(segments):
        raise ValueError("a segment belongs to no planned range")
    return found
