"""The write-ahead log of a pipeline: finds, reads and checks its records. ``sluice_spark.strategies.wal`` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sluice.ranges import OffsetRange, Positions
from sluice.wal import removal
from sluice.wal.catalog import Catalog
from sluice.wal.removal import Cleaned
from sluice.wal.segment import Damage, Segment, footer_of, rows_of

__all__ = ["Unread", "WriteAheadLog"]


class WriteAheadLog(Catalog):
    """A :class:`~sluice.wal.catalog.Catalog`, and the records in its segments."""

    def __init__(self, path: str, pipeline: str) -> None:
        super().__init__(path, pipeline)
        self._by_partition: dict[tuple[str, int], list[Segment]] | None = None

    def refresh(self) -> None:
        """Look at what is there now; see :meth:`Catalog.refresh`."""
        super().refresh()
        self._by_partition = None

    # --- time ----------------------------------------------------------------------------------------------------

    def first_at(self, topic: str, partition: int, milliseconds: int) -> int | None:
        """Return the first sealed offset whose timestamp is at or after a time; None if there is none.

        The handles tell which segment holds it; only the offsets and timestamps of that segment are read.

        Parameters
        ----------
        milliseconds
            The time in milliseconds since 1970, UTC.

        Notes
        -----
        For a segment that cannot be read, the first offset is returned if its handle says that it holds the time.
        """
        import numpy as np
        import pyarrow.parquet as pq

        for segment in self._of_partition(topic, partition):
            if segment.last < milliseconds:
                continue
            try:
                with self.fs.open(f"{self.root}/{segment.path}", "rb") as file:
                    table = pq.ParquetFile(file).read(columns=["offset", "timestamp"])
            except (OSError, ValueError):  # whoever reads its records says so
                return segment.range.start
            times = table.column("timestamp").cast("timestamp[ms]", safe=False).cast("int64").to_numpy()
            offsets = table.column("offset").to_numpy()[times >= milliseconds]
            if len(offsets):
                return int(np.min(offsets))
        return None

    def spans(self, topic: str, partition: int) -> list[OffsetRange]:
        """Return the offsets of a partition that sealed segments account for, in order."""
        return [segment.range for segment in self._of_partition(topic, partition)]

    def _of_partition(self, topic: str, partition: int) -> list[Segment]:
        if self._by_partition is None:
            found: dict[tuple[str, int], list[Segment]] = {}
            for segment in self.segments():
                found.setdefault((segment.range.topic, segment.range.partition), []).append(segment)
            self._by_partition = found
        return self._by_partition.get((topic, partition), [])

    # --- reading -------------------------------------------------------------------------------------------------

    def read_from(self, positions: Positions) -> Iterator[Any]:
        """Yield all records from a position on, partition by partition, as Arrow batches in the order of offsets.

        Parameters
        ----------
        positions
            Next offset to read per partition; a partition that is missing is read from its first sealed record.

        Raises
        ------
        ValueError
            If a page fails its checksum; :meth:`check` finds the segment.
        """
        ends: dict[tuple[str, int], int] = {}
        for _, span in self.known():
            key = (span.topic, span.partition)
            ends[key] = max(span.end, ends.get(key, 0))
        starts = {key: positions.get(key[0], {}).get(key[1], 0) for key in ends}
        yield from self.read(
            [OffsetRange(*key, starts[key], end) for key, end in sorted(ends.items()) if end > starts[key]]
        )

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[Any]:
        """Yield the records of these ranges as Arrow batches, without reading segments and row groups outside of them.

        Raises
        ------
        ValueError
            As :meth:`read_from`.
        """
        for segment in self.segments(ranges):
            for item in ranges:
                common = segment.range.cut(item)
                if common is not None:
                    try:
                        yield from rows_of(self.fs, self.root, segment, common.start, common.end)
                    except (OSError, ValueError) as error:
                        raise ValueError(f"{segment} cannot be read: {error}") from error

    # --- checking ------------------------------------------------------------------------------------------------

    def check(self, segments: Iterable[Segment], *, pages: bool = False) -> list[Damage]:
        """Return the segments that are damaged: missing, truncated or corrupt.

        Parameters
        ----------
        pages
            Whether to read every page, too, and verify its CRC-32. Otherwise length and footer are compared, which
            costs two small reads and finds files that are missing, truncated or corrupt at the end. Corrupt pages are
            then found when they are read.
        """
        found = [(segment, self._damage(segment, pages=pages)) for segment in segments]
        return [Damage(segment, what) for segment, what in found if what]

    def _damage(self, segment: Segment, *, pages: bool) -> str | None:
        name = f"{self.root}/{segment.path}"
        self.fs.invalidate_cache()
        try:
            length = self.fs.size(name)
            if length != segment.length:
                return f"truncated: {length} of {segment.length} bytes"
            with self.fs.open(name, "rb") as handle:
                if footer_of(handle, length) != segment.footer:
                    return "garbled: its footer fails its checksum"
            if pages:
                span = segment.range
                rows = sum(b.num_rows for b in rows_of(self.fs, self.root, segment, span.start, span.end))
                if rows != segment.records:
                    return f"garbled: it holds {rows} of {segment.records} records"
        except FileNotFoundError:
            return "missing"
        except (OSError, ValueError) as error:
            return f"garbled: {error}"
        return None

    def clean(
        self,
        threshold: datetime,
        *,
        applied: Mapping[int, int],
        needed: Sequence[OffsetRange] = (),
        dry_run: bool = False,
        thorough: bool = True,
    ) -> Cleaned:
        """Remove the segments whose records are all older than a threshold. Segments that were not applied stay.

        Parameters
        ----------
        threshold
            A time with a time zone, compared with record times.
        applied
            Per epoch, the newest batch that the sink holds. Segments of other epochs and of later batches stay.
        needed
            Open lost ranges: segments that hold them stay, so that they can be redriven.
        dry_run
            Whether only to return what would be removed.
        thorough
            Whether to remove the leftovers of a killed cleaning even if no segment is old; this lists every folder.

        Notes
        -----
        One commit removes the segments from the log; their files are removed after it. If the driver dies in between,
        the next cleaning that is thorough or finds something removes these files.
        """
        return removal.remove(self, threshold, applied=applied, needed=needed, dry_run=dry_run, thorough=thorough)


class Unread(WriteAheadLog):
    """A log that a run does not read, whatever it holds, and whether it can be read or not."""

    def refresh(self) -> None:
        """Do nothing."""

    def known(self) -> list[tuple[str, OffsetRange]]:
        """Return nothing."""
        return []
