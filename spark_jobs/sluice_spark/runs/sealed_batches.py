"""Finds the batches that are sealed in the write-ahead log but not applied to the sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.errors import SinkError
from sluice.ranges import OffsetRange, Positions
from sluice.wal import Segment
from sluice_spark.runs.tables import Tables
from sluice_spark.strategies.apply import Sealed

__all__ = ["sealed_batches", "sealed_behind"]


def sealed_batches(tables: Tables) -> list[Sealed]:
    """Return the batches of an epoch that are in the log but not in the sink, oldest first.

    Raises
    ------
    SinkError
        If the log's history does not have all of them.
    """
    if tables.applied is not None:
        return sealed_behind(tables, tables.applying.position())
    applied, sealed = tables.sink.version(), tables.log_table.version()
    if sealed <= applied:
        return []  # without reading the history
    found = [_sealed(note) for note in reversed(list(tables.log_table.notes(newer_than=applied)))]
    told = [batch.batch for batch in found]
    if told[: sealed - applied] != list(range(applied + 1, sealed + 1)):
        raise SinkError(
            f"the write-ahead log {tables.log.path} holds batches {applied + 1} to {sealed}, which were not applied, "
            f"but its history has only {', '.join(map(str, told)) or 'none'}",
            state="nothing was read or written now; nothing was skipped",
            next_step="restore the log's _delta_log from a copy",
        )
    return found


def sealed_behind(tables: Tables, position: Positions | None) -> list[Sealed]:
    """Return the batches of an epoch that the log holds behind a position, oldest first.

    The position is one between two sealed batches; None is that before the first one. Where the sink numbers its
    batches by itself, offsets alone tell which sealed batches it has.

    Raises
    ------
    SinkError
        If the log's history does not have all of them.
    """
    reached, found = position or {}, list[Sealed]()
    if tables.log_table.version() < 0 or (position is not None and position == tables.position()):
        return []  # without reading the history
    for note in tables.log_table.notes(newer_than=-1):
        if not note.get("ranges"):
            continue  # it closed the epoch
        batch = _sealed(note)
        if all(r.end <= reached.get(r.topic, {}).get(r.partition, 0) for r in batch.ranges):
            break
        found.insert(0, batch)
    told = [batch.batch for batch in found]
    gaps = told != list(range(told[0], told[0] + len(told))) if told else False
    first = {(r.topic, r.partition): r for batch in reversed(found) for r in batch.ranges}
    torn = [r for r in first.values() if r.start > reached.get(r.topic, {}).get(r.partition, r.start)]
    if torn or gaps:
        raise SinkError(
            f"the write-ahead log {tables.log.path} holds batches that were not applied, but its history has only "
            f"{', '.join(map(str, told))}",
            state="nothing was read or written now; nothing was skipped",
            next_step="restore the log's _delta_log from a copy",
        )
    return found


def _sealed(note: Mapping[str, Any]) -> Sealed:
    return Sealed(
        note["version"],
        tuple(OffsetRange(*r) for r in note["ranges"]),
        tuple(Segment.from_dict(s) for s in note["segments"]),
    )
