"""Finds the batches that are sealed in the write-ahead log but not applied to the sink."""

from __future__ import annotations

from sluice.errors import SinkError
from sluice.ranges import OffsetRange
from sluice.wal import Segment
from sluice_spark.runs.tables import Tables
from sluice_spark.strategies.apply import Sealed

__all__ = ["sealed_batches"]


def sealed_batches(tables: Tables) -> list[Sealed]:
    """Return the batches of an epoch that are in the log but not in the sink, oldest first.

    Raises
    ------
    SinkError
        If the log's history does not have all of them.
    """
    applied, sealed = tables.sink.version(), tables.log_table.version()
    if sealed <= applied:
        return []  # without reading the history
    found = [
        Sealed(
            note["version"],
            tuple(OffsetRange(*r) for r in note["ranges"]),
            tuple(Segment.from_dict(s) for s in note["segments"]),
        )
        for note in reversed(list(tables.log_table.notes(newer_than=applied)))
    ]
    told = [batch.batch for batch in found]
    if told[: sealed - applied] != list(range(applied + 1, sealed + 1)):
        raise SinkError(
            f"the write-ahead log {tables.log.path} holds batches {applied + 1} to {sealed}, which were not applied, "
            f"but its history has only {', '.join(map(str, told)) or 'none'}",
            state="nothing was read or written now; nothing was skipped",
            next_step="restore the log's _delta_log from a copy",
        )
    return found
