"""Whether a source still has what a live run must read: asked before the run, and when a batch fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import OffsetRange
from sluice.run.preflight import check as preflight
from sluice.sources.base import Source
from sluice.sources.state import TopicState
from sluice_spark.engine.failures import classify
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.base import SourceReader

__all__ = ["CheckedRecords", "SourceCheck"]


@dataclass(frozen=True)
class SourceCheck:
    """Asks the source of a live run."""

    context: RunContext
    source: Source

    def states(self, tables: Tables) -> list[TopicState]:
        """Return the topics' states, when everything that the run must read can be read.

        Raises
        ------
        SluiceError
            By type, when not.
        """
        checkpoint, states = tables.checkpoint, self.source.snapshot()
        open_batch = checkpoint.open_batch()
        # what is sealed, or in the sink, is not read again, whatever Spark still has to note down
        unread = open_batch is not None and open_batch > tables.filled.version()
        open_ranges = checkpoint.ranges_of(open_batch) if open_batch is not None and unread else []
        name = self.context.pipeline.name
        preflight(name, tables.position(), states, self.context.ledger.topic_ids(name), open_ranges)
        return states


@dataclass(frozen=True)
class CheckedRecords:
    """The records of a live run's source. When reading them fails, the source is asked as before the run."""

    reader: SourceReader
    check: SourceCheck
    tables: Tables

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges."""
        return self.reader.read(ranges)

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that are no longer there."""
        return self.reader.missing(ranges)

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Compare as the source does."""
        self.reader.verify(read, ranges)

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Ask the source as before the run, then read the message."""
        return classify(error, lambda: self._ask(ranges), self.reader.signs)

    def _ask(self, reading: Sequence[OffsetRange]) -> None:
        try:
            self.check.states(self.tables)
        except OffsetsGoneError as found:
            if self.check.context.recovery.ignores:  # what it has given up already is no reason any more
                found.ranges = tuple(self.reader.missing(reading))
                if not found.ranges:
                    return
            raise
