"""Applies sealed batches of a pipeline with state: a bounded stream over the log, whose checkpoint has the state."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType

from sluice_spark.batch.writer import BatchWriter
from sluice_spark.runs.batches import MicroBatches
from sluice_spark.runs.sealed_batches import sealed_batches, sealed_behind
from sluice_spark.runs.stateful_route import StatefulRoute
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.log import LogReader
from sluice_spark.strategies.apply import Sealed

__all__ = ["StateApplier"]


@dataclass
class StateApplier:
    """Does what :class:`~sluice_spark.strategies.apply.Applier` does, when everything is landed.

    One sealed batch is one micro-batch, so that what is late, and what is emitted, follows from the log. Spark also
    plans batches without records, which only close windows or forget keys; so the sink numbers its batches by itself.

    Parameters
    ----------
    tables
        Those of the epoch.
    writer
        The writer of batches, or why nothing can be applied.
    """

    batches: MicroBatches
    tables: Tables
    writer: BatchWriter | Exception
    done: int = 0
    _put: list[Sealed] = field(default_factory=list)

    def __enter__(self) -> StateApplier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: no thread was started."""

    def put(self, sealed: Sealed) -> None:
        """Note a batch that is in the log."""
        self._put.append(sealed)

    def finish(self) -> None:
        """Apply all batches that are in the log, and emit what the watermark allows.

        Raises
        ------
        Exception
            The failure of the first batch that could not be applied, or the one that was known from the start.
        """
        if isinstance(self.writer, Exception):
            raise self.writer
        applying = self.tables.applying
        # also a batch that is in the sink, if Spark has not committed it: its state is made again
        waiting = sealed_behind(self.tables, applying.checkpoint.positions())
        segments = tuple(segment for batch in waiting for segment in batch.segments)
        ranges = tuple(batch.ranges for batch in waiting)
        try:
            log = LogReader(self.batches.spark, self.tables.log, segments, ranges)
            StatefulRoute(self.batches).drain(applying, self.writer, log)
        finally:
            self.done = len(self._put) - len(sealed_batches(self.tables))
