"""Checks that the source still has what a live run must read: before the run, and when a batch fails."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import OffsetRange, Positions
from sluice.recovery import Route
from sluice.run.preflight import check as preflight
from sluice.run.preflight import refuse_behind, refuse_replaced, refuse_rewritten, unread_of
from sluice.sources.base import Matching, Replaced, Rewritten, Source
from sluice.sources.state import TopicState
from sluice_spark.engine.failures import classify
from sluice_spark.engine.logs import logger
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.base import SourceReader
from sluice_spark.sources.inputs import Input, inputs_of

__all__ = ["CheckedRecords", "SourceCheck"]


_SILENT = 60.0
"""A source that did not answer is asked again after so many seconds."""


@dataclass
class SourceCheck:
    """Checks the source of a run."""

    context: RunContext
    source: Source
    _asked_again: float = field(default=0.0, init=False)

    def states(self, tables: Tables) -> list[TopicState]:
        """Return the topics' states, after checking that everything that the run must read can be read.

        Raises
        ------
        SluiceError
            By type, if not.
        """
        ledger, name, positions = self.context.ledger, self.context.pipeline.name, tables.position()
        for reached in (ledger.offsets.reached(name), positions or {}):
            refuse_behind(name, self.source, reached, ledger.runs.topic_ids(name))
        checkpoint, states = tables.checkpoint, self.source.snapshot()
        open_batch = checkpoint.open_batch()
        # a batch that is sealed or in the sink is not read again, even if the checkpoint has not committed it; but the
        # state is made again from its records, which the log has, if there is one
        again = self.context.pipeline.stateful is not None and tables.epoch.route is Route.DIRECT
        unread = open_batch is not None and (again or open_batch > tables.filled.version())
        open_ranges = checkpoint.ranges_of(open_batch) if open_batch is not None and unread else []
        if open_batch is not None and open_ranges and not again:
            found = ledger.verdicts.decision(name, tables.epoch.number, open_batch, of=open_ranges)
            if found is not None and found.event == "BatchGivenUp":  # its records are not read
                positions = {topic: dict(parts) for topic, parts in (positions or {}).items()}
                for r in open_ranges:
                    positions.setdefault(r.topic, {})[r.partition] = r.end
                open_ranges = []
        deleted = self._deleted(positions or {}, states)
        planned = [*ledger.runs.last_plan(name, tables.epoch.number), *open_ranges] if deleted else []
        # what was planned and did not come to the sink is read again, whatever it is now
        read = open_ranges if open_batch is not None and open_batch <= tables.filled.version() else []
        try:
            preflight(
                name,
                positions,
                states,
                ledger.runs.topic_ids(name),
                open_ranges,
                deleted={topic: unread_of([topic], positions or {}, planned) for topic in deleted},
                accounted=ledger.offsets.reached(name) if self._by_pattern() else None,
            )
        except OffsetsGoneError:  # which an ignoring strategy goes on from
            self.not_rewritten(positions, read)
            raise
        self.not_rewritten(positions, read)
        return states

    def not_rewritten(self, positions: Positions | None, read: Sequence[OffsetRange] = ()) -> None:
        """Refuse a source whose offsets that were read stand for other records now: :func:`refuse_rewritten`.

        Parameters
        ----------
        positions
            Up to where records were read.
        read
            Ranges behind them that were read, too.
        """
        name = self.context.pipeline.name
        if isinstance(self.source, Rewritten) and (seen := self.context.ledger.runs.leaders(name)):
            refuse_rewritten(name, positions, read, seen, self.source.ends_of_epochs(seen))

    def unchanged(self, planned: Mapping[str, str]) -> None:
        """Check, when a batch was read, that its records are of the streams that were to be read.

        An id never comes back: if it is the same after reading, so it was before. A broker may be some moments behind
        the others, though. If none answers, the batch is taken as it is; the next run compares the ids, too.

        Parameters
        ----------
        planned
            The ids of the streams that the batch was read from, as far as they are known.

        Raises
        ------
        TopicRecreatedError
            If a topic was deleted and recreated meanwhile. Nothing of the batch may be committed.
        """
        if not planned or not isinstance(self.source, Replaced) or time.monotonic() < self._asked_again:
            return
        try:
            now = self.source.stream_ids(list(planned))
        except SluiceError as error:
            logger.warning("whether topics were recreated meanwhile is not known: %s", error.what)
            self._asked_again = time.monotonic() + _SILENT
            return
        refuse_replaced(self.context.pipeline.name, planned, now)

    def _by_pattern(self) -> bool:
        kafka = self.context.pipeline.source.kafka
        return kafka is not None and kafka.pattern is not None

    def _deleted(self, positions: Positions, states: Sequence[TopicState]) -> list[str]:
        """Return the topics of a pattern that were read before and are no longer there."""
        missing = set(positions).difference(state.topic for state in states)
        return self.source.deleted(missing) if missing and isinstance(self.source, Matching) else []


@dataclass(frozen=True)
class CheckedRecords:
    """The records of a live run's source. If reading them fails, the source is checked again as before the run."""

    reader: SourceReader
    check: SourceCheck
    tables: Tables

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges."""
        return self.reader.read(ranges)

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return where workers can read these ranges."""
        return inputs_of(self.reader, ranges)

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that can no longer be read."""
        return self.reader.missing(ranges)

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Check the number of records that were read, as the source does."""
        self.reader.verify(read, ranges)

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Return the typed error: from the check of the source, else from the error's message or the reader."""
        found = classify(error, lambda: self._ask(ranges), self.reader.signs)
        return self.reader.diagnose(error, ranges) if type(found) is SluiceError else found

    def _ask(self, reading: Sequence[OffsetRange]) -> None:
        try:
            self.check.states(self.tables)
        except OffsetsGoneError as found:
            if self.check.context.recovery.ignores:  # offsets outside of these ranges were skipped already
                found.ranges = tuple(self.reader.missing(reading))
                if not found.ranges:
                    return
            raise
