"""Finds which offsets an interval run replaces, and where their records can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from sluice.ledger.events import TimesFound
from sluice.ranges import OffsetRange, Positions, Times, describe, joined, overlaps, subtract
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice.run.redrive_plan import states_for
from sluice.run.resolve import Available, Resolved, missing
from sluice.run.resolve import resolve as resolved_of
from sluice.sources.base import Source
from sluice.sources.state import Key, TopicState, is_another
from sluice.wal import Segment, Unread
from sluice_spark.engine.logs import logger
from sluice_spark.runs.context import RunContext
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sources.base import Records
from sluice_spark.sources.log import LogRecords
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.sources.times import times_of

__all__ = ["IntervalOffsets"]

_LOOKED_AT = 16
"""Maximum number of ranges that are read to find out why rows are outside of the offsets to read."""


@dataclass
class IntervalOffsets:
    """Finds the offsets of an interval, from the ledger, the source and the write-ahead log.

    Attributes
    ----------
    notes
        Notes for the account of the run, on offsets that could not be examined.
    """

    context: RunContext
    interval: Interval
    notes: list[str] = field(default_factory=list)

    def available(
        self, source: Source | None = None, *, without_log: bool = False
    ) -> tuple[list[TopicState], Available]:
        """Return the topics' states (none if the source does not answer) and what can be read from where.

        Parameters
        ----------
        source
            The open source; by default it is opened.
        without_log
            Whether nothing is read from the write-ahead log.
        """
        source = source or self.context.opened_source()
        log = self.context.redriven().log
        if without_log:
            log = Unread(log.path, log.pipeline)
        log.refresh()
        trouble, name = None, self.context.pipeline.name
        try:
            # the table also has rows of topics that the file no longer names
            states = states_for(source, self.context.ledger.offsets.reached(name), self.context.ledger, name)
        except SourceUnreachableError as error:
            logger.warning("%s%s", error.what, "" if without_log else ": only the write-ahead log is searched")
            states, trouble = [], error
        known = self.context.ledger.runs.topic_ids(name)
        return states, Available.of(states, known, log, source, trouble=trouble)

    def source(
        self,
        spark: SparkSession,
        available: Available,
        kafka: Sequence[OffsetRange],
        log: Sequence[OffsetRange],
        segments: Sequence[Segment],
    ) -> RecordsInParts:
        """Return one source of records for the ranges that are read from Kafka and those that are read from the log."""
        sources: list[tuple[Records, Sequence[OffsetRange]]] = [
            (self.context.reader(spark, available.source), kafka),
            (LogRecords(spark, available.log, tuple(segments)), log),
        ]
        return RecordsInParts(tuple((records, tuple(parts)) for records, parts in sources if parts))

    def resolve(self, lease: Lease, known: IntervalRow | None, available: Available) -> Resolved:
        """Return the interval's offsets, after checking that its records can still be read.

        Raises
        ------
        OffsetsGoneError
            If some are in neither Kafka nor the log, and the strategy does not give them up; or if all of them are.
        CheckpointError
            If the tables hold rows of the interval whose records have another time.
        """
        name = self.context.pipeline.name
        reached = self.context.ledger.offsets.reached(name)
        ids = self.context.ledger.runs.topic_ids(name)
        fixed = [
            r for r in known.ranges if not is_another(known.topic_ids.get(r.topic), ids.get(r.topic))
        ] if known is not None else []  # fmt: skip
        gaps = missing(
            name,
            reached,
            available,
            lambda: [a.range for a in self.context.ledger.offsets.accounts(name) if a.counts.absent == len(a.range)],
        )
        lost = [row.range for row in self.context.ledger.offsets.never_read(name)]
        times = self.context.ledger.offsets.times(name)
        resolved = resolved_of(self.interval, reached, available, times, gaps, lost)
        if resolved.unknown:
            times += self._look_at_times(lease, available, resolved.unknown)
            resolved = resolved_of(self.interval, reached, available, times, gaps, lost)
        excluded = [t.range for t in times if not t.meets(*self.interval.milliseconds)]
        doubtful = subtract(gaps, [*lost, *excluded])
        gives_up = self.context.recovery is Recovery.IGNORE_RANGE
        # offsets that were resolved before are required: it is unknown which of their records a transform filtered
        gone = [] if gives_up else overlaps(doubtful, fixed)
        accounts = self.context.ledger.offsets.accounts(name) if doubtful else []
        settled = {(r.topic, r.partition) for r in fixed}
        # Below the start of the first live run it is unknown what was there. If the first readable record is not older
        # than the interval's start, earlier records may have been in the interval.
        gone += [
            gap
            for gap in subtract(doubtful, [a.range for a in accounts])
            if (gap.topic, gap.partition) not in settled and resolved.firsts[gap.topic, gap.partition] == gap.end
        ]
        held = self._held_outside(reached, resolved)
        gone = joined([*gone, *subtract(overlaps(gaps, held), gone)])
        if gone and not (gives_up and subtract(resolved.read, gone)):
            raise self._gone_error(gone, resolved.firsts, available)
        stray = subtract(held, [*gaps, *lost])
        if stray:
            raise self._stray_error(available, stray[:_LOOKED_AT])
        filtered = [r for a in accounts if a.counts.filtered for r in overlaps([a.range], subtract(doubtful, gone))]
        if filtered:
            self.notes.append(
                f"{sum(map(len, filtered)):,} offsets are no longer in the source or the write-ahead log. No row of "
                f"{self.interval} came from them, but live runs filtered some of their records, which cannot be "
                f"examined again: {describe(filtered)}"
            )
        if gone:
            self.notes.append(
                f"{sum(map(len, gone)):,} offsets are in neither the source nor the write-ahead log: this run counts "
                f"them as lost, and rows of them stay as they were: {describe(gone)}"
            )
        return resolved.giving_up(gone) if gone else resolved

    def _look_at_times(self, lease: Lease, available: Available, unknown: Sequence[OffsetRange]) -> list[Times]:
        """Read the times of records that no account has; record them in the ledger."""
        logger.info("reading the times of %d offsets, because no account has them", sum(map(len, unknown)))
        source = self.source(self.context.session(), available, *available.split(unknown))
        try:
            with self.context.watch.phase("times"):
                found = times_of(source, unknown)
        except SluiceError:
            raise
        except Exception as error:
            raise source.diagnose(error, unknown) from error
        gone = source.missing(unknown)
        if gone:  # removed during the read: the times found do not cover all of them
            raise OffsetsGoneError(
                f"pipeline {self.context.pipeline.name!r}: the source removed records while their times were read: "
                f"{describe(gone)}",
                next_step="run again. Let the source keep records for longer to prevent this",
                ranges=gone,
            )
        self.context.ledger.record(lease, TimesFound(times=found))
        return found

    def _held_outside(self, reached: Positions, resolved: Resolved) -> list[OffsetRange]:
        """Return the offsets of the interval's rows in the tables that are outside of the offsets to read."""
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
                table.check_replaceable()  # rows that deletion vectors mark as deleted would be counted
        return sorted(set(found))

    def _gone_error(self, gone: Sequence[OffsetRange], firsts: Mapping[Key, int], available: Available) -> SluiceError:
        name = self.context.pipeline.name
        recreated = sorted({r.topic for r in gone} & available.recreated)
        if recreated and available.trouble is None:
            return TopicRecreatedError(
                f"pipeline {name!r}: topic {recreated[0]!r} was recreated, and the write-ahead log does not hold "
                f"all of {self.interval}: {describe(gone)}",
                next_step="the records of the old topic are gone; an interval of the new topic needs a live run first",
            )
        begins = ", ".join(
            f"{t}-{n} from offset {firsts[t, n]}" for t, n in sorted({(r.topic, r.partition) for r in gone})
        )
        where, step = "in the source or the write-ahead log", ""
        if isinstance(available.log, Unread):
            where = "in the source"
            if self._in_log(gone):
                step = "run it with recovery wal: the write-ahead log has them. Or "
        return OffsetsGoneError(
            f"pipeline {name!r}: records of {self.interval} are no longer {where}: {describe(gone)}",
            next_step=f"{step}choose an interval that starts later (readable: {begins}). "
            f"{'' if self.context.recovery.ignores else 'Strategy ignore_range replaces the rest. '}"
            "Strategy wal keeps records for the time wal.keep, also beyond Kafka's retention",
            ranges=gone,
        )

    def _in_log(self, gone: Sequence[OffsetRange]) -> bool:
        log = self.context.redriven().log
        with suppress(SluiceError):
            return not subtract(gone, [s.range for s in log.segments(gone)])
        return False

    def unreadable(
        self, source: RecordsInParts, available: Available, readable: Sequence[OffsetRange], segments: Sequence[Segment]
    ) -> list[OffsetRange]:
        """Return the parts of these ranges that the source no longer has, or whose segments are damaged.

        Segments are read as a whole for this: it is for a strategy that gives up such parts.
        """
        damaged = [d.segment.range for d in available.log.check(segments, pages=True)]
        logged = [span for records, own in source.parts if isinstance(records, LogRecords) for span in own]
        gone = source.missing(readable)
        return joined([*gone, *subtract(subtract(logged, subtract(logged, damaged)), gone)])

    def _stray_error(self, available: Available, stray: Sequence[OffsetRange]) -> SluiceError:
        """Return the error for rows whose records are not in the interval: compaction, or a changed ``_timestamp``."""
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
            f"pipeline {name!r}: the tables hold rows of {self.interval} whose records "
            f"have another time: {describe(stray)}. Was _timestamp changed, by the transform or in the table?",
            next_step=f"set _timestamp of these rows to the times of their records (sluice audit {name} --deep "
            "says what else differs). An interval run cannot replace rows with another _timestamp",
        )

    def compacted(self, vanished: Sequence[OffsetRange]) -> OffsetsGoneError:
        """Return the error for rows of the interval whose records the source no longer has."""
        return OffsetsGoneError(
            f"pipeline {self.context.pipeline.name!r}: the tables hold records of {self.interval} that Kafka "
            f"removed by compaction: {describe(vanished)}",
            next_step="keep the rows as they are: replacing this interval would lose them",
            ranges=vanished,
        )
