"""Removes old segments from a write-ahead log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from sluice.delta.notes import NOTE
from sluice.errors import SinkError, described
from sluice.faults import point
from sluice.ranges import OffsetRange
from sluice.wal.catalog import Catalog
from sluice.wal.segment import Segment, batch_of, inspect, is_segment

__all__ = ["Cleaned", "remove"]


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


def remove(
    log: Catalog,
    threshold: datetime,
    *,
    applied: Mapping[int, int],
    needed: Sequence[OffsetRange],
    dry_run: bool,
    thorough: bool,
) -> Cleaned:
    """Remove segments; see :meth:`WriteAheadLog.clean <sluice.wal.log.WriteAheadLog.clean>`."""
    limit = threshold.timestamp() * 1000
    if not dry_run:
        _put_back(log)
    old = [
        s
        for s in _older(log, threshold)
        if s.last < limit and s.batch <= applied.get(s.epoch, -1) and not any(s.range.cut(r) for r in needed)
    ]
    touched = {(s.epoch, s.batch) for s in old}
    before = [s for epoch, batch in sorted(touched) for s in log.segments(epoch=epoch, batch=batch)]
    if old and not dry_run:
        _forget(log, old)
        point("segments-forgotten")
    if not dry_run and (old or thorough):
        _remove_forgotten(log, applied)
        _prune_history(log, applied)
    if old and not dry_run:
        point("segments-removed")
    return _cleaned(old, before)


def _older(log: Catalog, threshold: datetime) -> list[Segment]:
    """Return segments that may be old enough, by the statistics in Delta's log; other seals are not read."""
    import pyarrow as pa

    table = log.there()
    actions = pa.table(table.get_add_actions(flatten=True)) if table is not None else None
    if actions is None or actions.num_rows == 0:
        return []
    newest = actions.column("max.timestamp").to_pylist()
    limit = threshold + timedelta(seconds=1)  # statistics are truncated to milliseconds
    paths = actions.column("path").to_pylist()
    near = [path for path, last in zip(paths, newest, strict=True) if last is None or last < limit]
    return [log.handle(path) for path in near if is_segment(path)] + log.replaced(actions)


def _put_back(log: Catalog) -> None:
    """Undo an OPTIMIZE in one commit: segments are cleaned one by one, and its files hold records of many."""
    import time

    import pyarrow as pa
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, RemoveAction

    table = log.there()
    actions = pa.table(table.get_add_actions(flatten=True)) if table is not None else None
    if actions is None or actions.num_rows == 0:
        return
    segments, now = log.replaced(actions), int(time.time() * 1000)
    if not segments:
        return
    others = [path for path in actions.column("path").to_pylist() if not is_segment(path)]
    removed = [RemoveAction(unquote(path), False, now) for path in others]
    added = [
        AddAction(s.path, s.length, {}, now, False, _statistics(inspect(log.fs, log.root, s.path))) for s in segments
    ]
    try:
        table.create_write_transaction([*removed, *added], "append", table.schema())
    except (DeltaError, OSError, ValueError) as error:
        raise SinkError(
            f"the write-ahead log {log.path} cannot be written: {described(error)}",
            state="nothing was cleaned",
            next_step="run sluice clean again",
        ) from error
    log.refresh()


def _forget(log: Catalog, segments: Sequence[Segment]) -> None:
    import time

    from deltalake import CommitProperties
    from deltalake.transaction import RemoveAction

    now = int(time.time() * 1000)
    actions = [RemoveAction(s.path, True, now, s.length) for s in segments]
    log.there().create_write_transaction(
        actions,
        "append",
        log.there().schema(),
        commit_properties=CommitProperties(custom_metadata={NOTE: {"forgotten": [s.path for s in segments]}}),
    )
    log.refresh()


def _remove_forgotten(log: Catalog, applied: Mapping[int, int]) -> None:
    kept = {path for path, _ in log.known()}
    log.fs.invalidate_cache()
    # by listings, for a glob reads brackets in the log's path as a pattern
    for folder in log.fs.ls(f"{log.root}/batches", detail=False) if log.fs.exists(f"{log.root}/batches") else ():
        name = str(folder).rsplit("/", 1)[-1]
        epoch, batch = batch_of(f"batches/{name}")
        if batch > applied.get(epoch, -1):
            continue  # a driver may seal it soon
        files = [str(f) for f in log.fs.ls(folder, detail=False) if str(f).endswith(".parquet")]
        inside = {f: f"batches/{name}/{f.rsplit('/', 1)[-1]}" in kept for f in files}
        if not any(inside.values()):
            log.fs.rm(str(folder), recursive=True)
            continue
        for file in (f for f, keep in inside.items() if not keep):
            log.fs.rm(file)


def _prune_history(log: Catalog, applied: Mapping[int, int]) -> None:
    """Remove commits of Delta's log that are older than its retention, unless a batch waits to be applied.

    Such a batch is found by the metadata of its commit, so the table's writers do not remove commits by themselves.
    """
    from deltalake.exceptions import DeltaError

    table = log.there()
    waiting = any(batch > applied.get(epoch, -1) for epoch, batch in (batch_of(path) for path, _ in log.known()))
    if table is not None and not waiting:
        with suppress(DeltaError, OSError):  # the next cleaning removes them
            table.cleanup_metadata()


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
