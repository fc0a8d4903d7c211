"""Which offsets a run of an interval replaces, and where their records can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyspark.sql import SparkSession

from sluice.errors import (
    CheckpointError,
    OffsetsGoneError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
)
from sluice.ledger import IntervalRow, Lease
from sluice.ranges import OffsetRange, Positions, Times, describe, overlaps, subtract
from sluice.run.interval import Interval
from sluice.run.resolve import Available, Resolved, missing
from sluice.run.resolve import resolve as resolved_of
from sluice.sources.state import Key, TopicState, is_another
from sluice.wal import Segment
from sluice_spark.engine.logs import logger
from sluice_spark.runs.context import RunContext
from sluice_spark.sinks.delta.slice import Slice
from sluice_spark.sources.base import Records
from sluice_spark.sources.log import LogRecords
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.sources.times import times_of

__all__ = ["IntervalOffsets"]

_LOOKED_AT = 16
"""Stretches of offsets that are read one by one to find out what is wrong with them."""


@dataclass
class IntervalOffsets:
    """Finds the offsets of an interval, from the ledger, the source and the write-ahead log.

    Attributes
    ----------
    notes
        What the account of the run is to say of offsets that could not be looked at.
    """

    context: RunContext
    interval: Interval
    notes: list[str] = field(default_factory=list)

    def available(self) -> tuple[list[TopicState], Available]:
        """Return the topics' states, none when the source does not answer, and what can be read where."""
        source = self.context.opened_source()
        log = self.context.redriven().log
        log.refresh()
        trouble = None
        try:
            states = source.snapshot()
        except SourceUnreachableError as error:
            logger.warning("%s: only the write-ahead log is asked", error.what)
            states, trouble = [], error
        known = self.context.ledger.topic_ids(self.context.pipeline.name)
        return states, Available.of(
            states, known, log, source, trouble=trouble
        )  # fmt: skip

    def source(
        self,
        spark: SparkSession,
        available: Available,
        kafka: Sequence[OffsetRange],
        log: Sequence[OffsetRange],
        segments: Sequence[Segment],
    ) -> RecordsInParts:
        """Return the records of the source's ranges and of those of the log, as one place to read from."""
        sources: list[tuple[Records, Sequence[OffsetRange]]] = [
            (self.context.reader(spark, available.source), kafka),
            (LogRecords(spark, available.log, tuple(segments)), log),
        ]
        return RecordsInParts(tuple((records, tuple(parts)) for records, parts in sources if parts))

    def resolve(self, lease: Lease, known: IntervalRow | None, available: Available) -> Resolved:
        """Return the interval's offsets, when all of them that matter can be read.

        Raises
        ------
        OffsetsGoneError
            When some are in neither Kafka nor the log.
        """
        name = self.context.pipeline.name
        reached = self.context.ledger.reached(name)
        ids = self.context.ledger.topic_ids(name)
        fixed = [
            r for r in known.ranges if not is_another(known.topic_ids.get(r.topic), ids.get(r.topic))
        ] if known is not None else []  # fmt: skip
        gaps = missing(
            name,
            reached,
            available,
            lambda: [a.range for a in self.context.ledger.accounts(name) if a.counts.absent == len(a.range)],
        )
        lost = [row.range for row in self.context.ledger.lost(name)]
        times = self.context.ledger.times(name)
        resolved = resolved_of(self.interval, reached, available, times, gaps, lost)
        if resolved.unknown:
            times += self._look_at_times(lease, available, resolved.unknown)
            resolved = resolved_of(self.interval, reached, available, times, gaps, lost)
        excluded = [t.range for t in times if not t.meets(*self.interval.milliseconds)]
        doubtful = subtract(gaps, [*lost, *excluded])
        # what was resolved once was there to be read: nobody knows which of its records a filter left out
        gone = overlaps(doubtful, fixed)
        accounts = self.context.ledger.accounts(name) if doubtful else []
        settled = {(r.topic, r.partition) for r in fixed}
        # Below what live runs began with nobody knows what was there; where the first record that can be read is not
        # older than the interval's start, older ones may have been its.
        gone += [
            gap
            for gap in subtract(doubtful, [a.range for a in accounts])
            if (gap.topic, gap.partition) not in settled and resolved.firsts[gap.topic, gap.partition] == gap.end
        ]
        held = self._held_outside(reached, resolved)
        gone = sorted({*gone, *overlaps(gaps, held)})
        if gone:
            raise self._gone_error(gone, resolved.firsts, available)
        stray = subtract(held, [*gaps, *lost])
        if stray:
            raise self._stray_error(available, stray[:_LOOKED_AT])
        filtered = [r for a in accounts if a.counts.filtered for r in overlaps([a.range], doubtful)]
        if filtered:
            self.notes.append(
                f"{sum(map(len, filtered)):,} offsets are in neither Kafka nor the write-ahead log any more. None of "
                f"the rows of {self.interval} came from them, but live runs filtered some of their records, which "
                f"cannot be looked at again: {describe(filtered)}"
            )
        return resolved

    def _look_at_times(self, lease: Lease, available: Available, unknown: Sequence[OffsetRange]) -> list[Times]:
        """Read the times of records, and nothing else, where no account has them; enter them into the ledger."""
        logger.info("looking at the times of %d offsets, which no account has", sum(map(len, unknown)))
        source = self.source(self.context.session(), available, *available.split(unknown))
        try:
            with self.context.watch.phase("times"):
                found = times_of(source, unknown)
        except SluiceError:
            raise
        except Exception as error:
            raise source.diagnose(error, unknown) from error
        gone = source.missing(unknown)
        if gone:  # while it was looked at: what was seen does not hold for all of it
            raise OffsetsGoneError(
                f"pipeline {self.context.pipeline.name!r}: Kafka dropped records while their times were looked at: "
                f"{describe(gone)}",
                next_step="run again. Raise the topic's retention for the next time",
                ranges=gone,
            )
        self.context.ledger.times_found(lease, found)
        return found

    def _held_outside(self, reached: Positions, resolved: Resolved) -> list[OffsetRange]:
        """Return the offsets of the interval's rows in the tables that are not among those to be read."""
        below = [OffsetRange(t, n, 0, end) for t, parts in reached.items() for n, end in parts.items() if end]
        outside = Slice(subtract(below, resolved.read), *self.interval.milliseconds)
        if not outside.ranges:
            return []
        tables = self.context.redriven()
        found = []
        for table in (tables.replacing(), tables.quarantine):
            for (topic, partition), offsets in table.held(outside).items():
                edges = np.flatnonzero(np.diff(offsets) > 1)
                begins, ends = offsets[np.append(0, edges + 1)], offsets[np.append(edges, -1)]
                found += [OffsetRange(topic, partition, int(a), int(b) + 1) for a, b in zip(begins, ends, strict=True)]
            if found:
                table.check_replaceable()  # rows that are deleted by vectors are none
        return sorted(set(found))

    def _gone_error(self, gone: Sequence[OffsetRange], firsts: Mapping[Key, int], available: Available) -> SluiceError:
        name = self.context.pipeline.name
        recreated = [t for t in {r.topic for r in gone} if not any(k[0] == t for k in available.kafka)]
        if recreated and available.trouble is None:
            return TopicRecreatedError(
                f"pipeline {name!r}: topic {recreated[0]!r} was recreated, and the write-ahead log does not hold "
                f"all of {self.interval}: {describe(gone)}",
                next_step="these records are gone with the old topic; an interval of the new one needs a live run "
                "first",
            )
        begins = ", ".join(
            f"{t}-{n} from offset {firsts[t, n]}" for t, n in sorted({(r.topic, r.partition) for r in gone})
        )
        return OffsetsGoneError(
            f"pipeline {name!r}: records of {self.interval} are in neither Kafka nor the write-ahead log any more: "
            f"{describe(gone)}",
            next_step=f"choose an interval that begins later (what can be read begins: {begins}). Strategy wal "
            "keeps records for wal.keep, beyond Kafka's retention",
            ranges=gone,
        )

    def _stray_error(self, available: Available, stray: Sequence[OffsetRange]) -> SluiceError:
        """Return why rows of the interval stand where no record of it does: compaction, or a time that was changed."""
        source = self.source(self.context.session(), available, *available.split(stray))
        try:
            rows = source.read(stray).select("topic", "partition", "offset").collect()
        except SluiceError:
            raise
        except Exception as error:
            raise source.diagnose(error, stray) from error
        there = [OffsetRange(row[0], row[1], row[2], row[2] + 1) for row in rows]
        if vanished := subtract(stray, there):
            return self.compacted(vanished)
        name = self.context.pipeline.name
        return CheckpointError(
            f"pipeline {name!r}: rows of {self.interval} stand in the tables with offsets whose records "
            f"have another time: {describe(stray)}. Was _timestamp changed, by the transform or in the table?",
            next_step=f"give these rows the times of their records again (sluice audit {name} --deep "
            "says what else differs). An interval cannot replace rows with another _timestamp",
        )

    def compacted(self, vanished: Sequence[OffsetRange]) -> OffsetsGoneError:
        """Return the error for rows of the interval whose records the source no longer has."""
        return OffsetsGoneError(
            f"pipeline {self.context.pipeline.name!r}: the tables hold records of {self.interval} that Kafka has "
            f"compacted away: {describe(vanished)}",
            next_step="this interval can no longer be replaced without losing them",
            ranges=vanished,
        )
