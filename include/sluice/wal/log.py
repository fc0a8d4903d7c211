"""Finds, reads, checks and cleans the segments of a write-ahead log. Written by ``sluice_spark.strategies.wal``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from sluice.errors import SinkError
from sluice.faults import point
from sluice.ranges import OffsetRange, Positions
from sluice.wal.segment import Damage, Segment, batch_of, footer_of, inspect, is_segment

__all__ = ["SEAL", "Cleaned", "WriteAheadLog", "seal_text"]

_NOTE = "sluice"

SEAL = "_seal.json"
"""The file with the handles of a batch's segments, beside them; written before the commit that seals the batch."""


def seal_text(segments: Iterable[Segment]) -> str:
    """Return the content of :data:`SEAL`."""
    return json.dumps({"segments": [s.as_dict() for s in segments]}, indent=1)


@dataclass(frozen=True)
class Cleaned:
    """The segments that a cleaning removed, and what the log retains of each batch that it touched."""

    segments: tuple[Segment, ...]
    left: tuple[dict[str, int], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form: the payload of the event ``SegmentsCleaned``."""
        return {
            "segments": len(self.segments),
            "records": sum(s.records for s in self.segments),
            "bytes": sum(s.length for s in self.segments),
            "batches": list(self.left),
        }


_CHANGES = {"DELETE", "UPDATE", "MERGE"}
"""Delta operations that change rows; OPTIMIZE only moves them."""


class WriteAheadLog:
    """The write-ahead log of one pipeline, by path or URL; it need not exist yet.

    An open log is a snapshot; :meth:`refresh` shows what was sealed or cleaned since.

    The log is a Delta table, and other programs may change it. Segments that OPTIMIZE replaced are read from their own
    files until the next cleaning restores them in the table. Segments that DELETE or RESTORE removed completely count
    as cleaned. If rows were changed, or VACUUM removed the files of replaced segments, every operation that needs old
    segments is refused; landing and applying do not need them.

    Parameters
    ----------
    path
        The Delta table's root, a path or URL.
    pipeline
        The name of the log's pipeline.
    """

    def __init__(self, path: str, pipeline: str) -> None:
        import fsspec

        self.path = path
        self.pipeline = pipeline
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(path)
        self._table: Any = None
        self._seals: dict[str, dict[str, Segment]] = {}
        self._by_partition: dict[tuple[str, int], list[Segment]] | None = None
        self._told: dict[str, Segment] | None = None
        self._closed = False

    def app_id(self, epoch: int) -> str:
        """Return the application id of an epoch's seals in Delta's log."""
        return f"sluice:{self.pipeline}:{epoch}:log"

    def refresh(self) -> None:
        """Load the newest version of the log.

        Raises
        ------
        SinkError
            If it cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        if self._closed:
            raise ValueError(f"the log {self.path} was closed")
        try:
            self._table = DeltaTable(self.path)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError, ValueError) as error:
            raise SinkError(
                f"the write-ahead log {self.path} cannot be read: {type(error).__name__}: {error}",
                state="nothing was read or written now",
                next_step="fix the storage, then run again",
            ) from error
        self._seals.clear()
        self._by_partition = None
        self._told = None

    def close(self) -> None:
        """Release the memory. Later calls raise ``ValueError``."""
        self._table = None
        self._seals.clear()
        self._closed = True

    def version(self, epoch: int) -> int:
        """Return the newest sealed batch of an epoch; -1 if there is none."""
        table = self._there()
        found = None if table is None else table.transaction_version(self.app_id(epoch))
        return -1 if found is None else int(found)

    # --- handles -------------------------------------------------------------------------------------------------

    def segments(
        self, ranges: Iterable[OffsetRange] | None = None, *, epoch: int | None = None, batch: int | None = None
    ) -> list[Segment]:
        """Return the handles of sealed segments, in the order of topic, partition and offset.

        Parameters
        ----------
        ranges
            Only segments that account for some of these offsets. They are found by the statistics in Delta's log: no
            segment is opened, and only their seals are read.
        epoch, batch
            Only segments of this epoch or batch.

        Raises
        ------
        SinkError
            If the log, or a seal that is needed, cannot be read.
        """
        wanted = None if ranges is None else list(ranges)
        known = [
            (path, span)
            for path, span in self._known()
            if epoch in (None, batch_of(path)[0]) and batch in (None, batch_of(path)[1])
        ]
        found = [self._handle(path) for path in (_near(known, wanted) if wanted is not None else [p for p, _ in known])]
        if wanted is not None:
            found = [s for s in found if any(s.range.cut(item) for item in wanted)]
        return sorted(found, key=lambda s: s.range)

    def _there(self) -> Any:
        if self._table is None:
            self.refresh()
        return self._table

    def _known(self) -> list[tuple[str, OffsetRange]]:
        import pyarrow as pa

        table = self._there()
        if table is None:
            return []
        actions = pa.table(table.get_add_actions(flatten=True))
        if actions.num_rows == 0:
            return []
        columns = [actions.column(c).to_pylist() for c in ("path", "min.topic", "min.partition", "min.offset")]
        columns.append(actions.column("max.offset").to_pylist())
        known = [(p, OffsetRange(t, n, lo, hi + 1)) for p, t, n, lo, hi in zip(*columns, strict=True) if is_segment(p)]
        return known + [(s.path, s.range) for s in self._replaced(actions)]

    def _replaced(self, actions: Any) -> list[Segment]:
        """Return the segments that OPTIMIZE replaced by other files; their own files exist until a VACUUM.

        Raises
        ------
        SinkError
            If they do not have as many records as the other files.
        """
        paths, counts = actions.column("path").to_pylist(), actions.column("num_records").to_pylist()
        others = sum(count for path, count in zip(paths, counts, strict=True) if not is_segment(path))
        if all(is_segment(path) for path in paths):
            return []
        self._fs.invalidate_cache()
        deleted: set[str] = set()
        for commit in self._table.history():
            if commit.get("operation") in _CHANGES:
                removed = self._only_removed(int(commit["version"]))
                if removed is None:
                    raise self._rewritten(f"rows of it were changed ({commit['operation']})")
                deleted |= removed
        missing = [s for path, s in self._sealed().items() if path not in paths and path not in deleted]
        found = [s for s in missing if self._fs.exists(f"{self._root}/{s.path}")]
        records = sum(s.records for s in found)
        if records != others:
            raise self._rewritten(
                f"OPTIMIZE replaced segments of {others} records, and segments of {records} records are still there, "
                "as after a VACUUM"
            )
        return found

    def _only_removed(self, version: int) -> set[str] | None:
        """Return the files that a commit removed; None if it also added some, or can no longer be read."""
        try:
            with self._fs.open(f"{self._root}/_delta_log/{version:020}.json", "rb") as file:
                actions = [json.loads(line) for line in file]
        except (OSError, ValueError):
            return None
        if any("add" in action or "cdc" in action for action in actions):
            return None
        return {unquote(action["remove"]["path"]) for action in actions if "remove" in action}

    def _rewritten(self, what: str) -> SinkError:
        return SinkError(
            f"the write-ahead log {self.path} was changed by another program: {what}. Its old segments are unusable",
            state="nothing was read or written now. Landing and applying go on without the old segments: what is "
            "sealed and not applied yet is applied from its own files",
            next_step="restore the segments' files from a copy; or delete the log's old records, with Spark: "
            f"DELETE FROM delta.`{self.path}` WHERE true; then: sluice clean {self.pipeline}",
        )

    def _sealed(self) -> dict[str, Segment]:
        """Return, by path, every segment that was sealed and not cleaned, according to the table's history."""
        if self._told is None:
            notes = [n for commit in self._there().history() if (n := _note(commit)) is not None]
            gone = {path for note in notes for path in note.get("forgotten", ())}
            found = [Segment.from_dict(s) for note in notes for s in note.get("segments", ())]
            self._told = {s.path: s for s in found if s.path not in gone}
        return self._told

    def _handle(self, path: str) -> Segment:
        folder, _, _ = path.rpartition("/")
        if folder not in self._seals:
            try:
                with self._fs.open(f"{self._root}/{folder}/{SEAL}", "rb") as file:
                    handles = [Segment.from_dict(s) for s in json.loads(file.read())["segments"]]
                self._seals[folder] = {s.path: s for s in handles}
            except FileNotFoundError as error:  # a full VACUUM removes it as an unknown file
                self._seals[folder] = {p: s for p, s in self._sealed().items() if p.rpartition("/")[0] == folder}
                if not self._seals[folder]:
                    raise self._broken_seal(folder, error) from error
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise self._broken_seal(folder, error) from error
        try:
            return self._seals[folder][path]
        except KeyError as error:
            raise self._broken_seal(folder, error) from error

    def _broken_seal(self, folder: str, error: Exception) -> SinkError:
        return SinkError(
            f"the seal {self.path}/{folder}/{SEAL} is damaged: {type(error).__name__}: {error}",
            state="nothing was read or written now; the segments beside it may be intact",
            next_step="restore the file from a copy; or remove it: the table's history has the same content, as far as "
            f"it reaches back. So has the ledger: sluice ledger {self.pipeline} --json, event SegmentSealed",
        )

    # --- time ----------------------------------------------------------------------------------------------------

    def first_at(self, topic: str, partition: int, milliseconds: int) -> int | None:
        """Return the first sealed offset whose timestamp is at or after a time; None if there is none.

        The handles tell which segment holds it; only the offsets and timestamps of that segment are read.

        Parameters
        ----------
        milliseconds
            The time in milliseconds since 1970, UTC.

        Raises
        ------
        SinkError
            If the log or the segment cannot be read.
        """
        import numpy as np
        import pyarrow.parquet as pq

        for segment in self._of_partition(topic, partition):
            if segment.last < milliseconds:
                continue
            try:
                with self._fs.open(f"{self._root}/{segment.path}", "rb") as file:
                    table = pq.ParquetFile(file).read(columns=["offset", "timestamp"])
            except (OSError, ValueError) as error:
                raise SinkError(
                    f"{segment} cannot be read: {error}",
                    state="nothing was read or written now",
                    next_step="restore the file from a copy",
                ) from error
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
        for _, span in self._known():
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
                        yield from self._rows(segment, common.start, common.end)
                    except (OSError, ValueError) as error:
                        raise ValueError(f"{segment} cannot be read: {error}") from error

    def _rows(self, segment: Segment, start: int, end: int) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        try:
            with self._fs.open(f"{self._root}/{segment.path}", "rb") as handle:
                parquet = pq.ParquetFile(handle, page_checksum_verification=True)
                leaf = next(i for i in range(len(parquet.schema)) if parquet.metadata.schema.column(i).path == "offset")
                for group in range(parquet.num_row_groups):
                    stats = parquet.metadata.row_group(group).column(leaf).statistics
                    if stats.max < start or stats.min >= end:
                        continue
                    for rows in parquet.iter_batches(row_groups=[group]):
                        offsets = rows.column("offset")
                        kept = rows.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
                        if kept.num_rows:
                            yield kept
        except (pa.ArrowException, MemoryError) as error:  # some of these are neither OSError nor ValueError
            raise ValueError(str(error)) from error

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
        name = f"{self._root}/{segment.path}"
        self._fs.invalidate_cache()
        try:
            length = self._fs.size(name)
            if length != segment.length:
                return f"truncated: {length} of {segment.length} bytes"
            with self._fs.open(name, "rb") as handle:
                if footer_of(handle, length) != segment.footer:
                    return "garbled: its footer fails its checksum"
            if pages:
                rows = sum(b.num_rows for b in self._rows(segment, segment.range.start, segment.range.end))
                if rows != segment.records:
                    return f"garbled: it holds {rows} of {segment.records} records"
        except FileNotFoundError:
            return "missing"
        except (OSError, ValueError) as error:
            return f"garbled: {error}"
        return None

    # --- cleaning ------------------------------------------------------------------------------------------------

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
        limit = threshold.timestamp() * 1000
        if not dry_run:
            self._put_back()
        old = [
            s
            for s in self._older(threshold)
            if s.last < limit and s.batch <= applied.get(s.epoch, -1) and not any(s.range.cut(r) for r in needed)
        ]
        touched = {(s.epoch, s.batch) for s in old}
        before = [s for epoch, batch in sorted(touched) for s in self.segments(epoch=epoch, batch=batch)]
        if old and not dry_run:
            self._forget(old)
            point("segments-forgotten")
        if not dry_run and (old or thorough):
            self._remove_forgotten(applied)
        if old and not dry_run:
            point("segments-removed")
        return _cleaned(old, before)

    def _older(self, threshold: datetime) -> list[Segment]:
        """Return segments that may be old enough, by the statistics in Delta's log; other seals are not read."""
        import pyarrow as pa

        table = self._there()
        actions = pa.table(table.get_add_actions(flatten=True)) if table is not None else None
        if actions is None or actions.num_rows == 0:
            return []
        newest = actions.column("max.timestamp").to_pylist()
        limit = threshold + timedelta(seconds=1)  # statistics are truncated to milliseconds
        paths = actions.column("path").to_pylist()
        near = [path for path, last in zip(paths, newest, strict=True) if last is None or last < limit]
        return [self._handle(path) for path in near if is_segment(path)] + self._replaced(actions)

    def _put_back(self) -> None:
        """Undo an OPTIMIZE in one commit: segments are cleaned one by one, and its files hold records of many."""
        import time

        import pyarrow as pa
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction, RemoveAction

        table = self._there()
        actions = pa.table(table.get_add_actions(flatten=True)) if table is not None else None
        if actions is None or actions.num_rows == 0:
            return
        segments, now = self._replaced(actions), int(time.time() * 1000)
        if not segments:
            return
        others = [path for path in actions.column("path").to_pylist() if not is_segment(path)]
        removed = [RemoveAction(unquote(path), False, now) for path in others]
        added = [
            AddAction(s.path, s.length, {}, now, False, _statistics(inspect(self._fs, self._root, s.path)))
            for s in segments
        ]
        try:
            table.create_write_transaction([*removed, *added], "append", table.schema())
        except (DeltaError, OSError, ValueError) as error:
            raise SinkError(
                f"the write-ahead log {self.path} cannot be written: {type(error).__name__}: {error}",
                state="nothing was cleaned",
                next_step="run sluice clean again",
            ) from error
        self.refresh()

    def _forget(self, segments: Sequence[Segment]) -> None:
        import time

        from deltalake import CommitProperties
        from deltalake.transaction import RemoveAction

        now = int(time.time() * 1000)
        actions = [RemoveAction(s.path, True, now, s.length) for s in segments]
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            commit_properties=CommitProperties(custom_metadata={_NOTE: {"forgotten": [s.path for s in segments]}}),
        )
        self.refresh()

    def _remove_forgotten(self, applied: Mapping[int, int]) -> None:
        kept = {path for path, _ in self._known()}
        self._fs.invalidate_cache()
        for folder in self._fs.glob(f"{self._root}/batches/*"):
            name = str(folder).rsplit("/", 1)[-1]
            epoch, batch = batch_of(f"batches/{name}")
            if batch > applied.get(epoch, -1):
                continue  # a driver may seal it soon
            files = [str(f) for f in self._fs.glob(f"{folder}/*.parquet")]
            inside = {f: f"batches/{name}/{f.rsplit('/', 1)[-1]}" in kept for f in files}
            if not any(inside.values()):
                self._fs.rm(str(folder), recursive=True)
                continue
            for file in (f for f, keep in inside.items() if not keep):
                self._fs.rm(file)


def _note(commit: Mapping[str, Any]) -> dict[str, Any] | None:
    note = commit.get(_NOTE)
    note = json.loads(note) if isinstance(note, str) else note
    return note if isinstance(note, dict) else None


def _statistics(segment: Segment) -> str:
    """Return Delta's statistics of a segment, as far as this module uses them."""
    span = segment.range
    low = {"topic": span.topic, "partition": span.partition, "offset": span.start}
    with suppress(ValueError, OverflowError, OSError):  # a time outside of Python's range is left out
        last = datetime.fromtimestamp(segment.last / 1000, UTC).isoformat(timespec="milliseconds")
        first = datetime.fromtimestamp(segment.first / 1000, UTC).isoformat(timespec="milliseconds")
        times = {"min": {"timestamp": first}, "max": {"timestamp": last}}
        return _stats(segment, low | times["min"], low | {"offset": span.end - 1} | times["max"])
    return _stats(segment, low, low | {"offset": span.end - 1})


def _stats(segment: Segment, low: dict[str, Any], high: dict[str, Any]) -> str:
    return json.dumps({"numRecords": segment.records, "minValues": low, "maxValues": high, "nullCount": {}})


def _cleaned(old: Sequence[Segment], everything: Sequence[Segment]) -> Cleaned:
    gone = {s.path for s in old}
    left: list[dict[str, int]] = []
    for epoch, batch in sorted({(s.epoch, s.batch) for s in old}):
        rest = [s for s in everything if (s.epoch, s.batch) == (epoch, batch) and s.path not in gone]
        totals = {"segments": len(rest), "records": sum(s.records for s in rest), "bytes": sum(s.length for s in rest)}
        left.append({"epoch": epoch, "batch": batch, **totals})
    return Cleaned(tuple(old), tuple(left))


def _near(known: Sequence[tuple[str, OffsetRange]], wanted: Sequence[OffsetRange]) -> list[str]:
    """Return the files that may account for these ranges.

    These are the files with records of the ranges. If a range begins or ends in an offset gap, the neighbouring file is
    included, because the gap may belong to it.
    """
    chosen: set[str] = set()
    for item in wanted:
        here = sorted(((s, p) for p, s in known if (s.topic, s.partition) == (item.topic, item.partition)))
        inside = [i for i, (span, _) in enumerate(here) if span.cut(item)]
        begins = inside and here[inside[0]][0].start <= item.start
        ends = inside and here[inside[-1]][0].end >= item.end
        before = [] if begins else [i for i, (span, _) in enumerate(here) if span.end <= item.start][-1:]
        behind = [] if ends else [i for i, (span, _) in enumerate(here) if span.start >= item.end][:1]
        chosen.update(here[i][1] for i in (*before, *inside, *behind))
    return sorted(chosen)
