"""A run of an interval: reprocesses a range of record time, beside the live pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from sluice.errors import (
    CheckpointError,
    LeaseHeldError,
    OffsetsGoneError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
)
from sluice.faults import point
from sluice.ledger import REDRIVEN, IntervalRow, Lease
from sluice.ranges import LostRange, OffsetRange, Positions, Times, describe, overlaps, subtract
from sluice.run.interval import Interval
from sluice.run.resolve import Available, Resolved, missing, resolve
from sluice.sources.kafka.cluster import TopicState, ids_of
from sluice.wal import Segment
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.logs import logger
from sluice_spark.runs.reconcile import enter_interval, half_done, replace_quarantined, take_over
from sluice_spark.runs.redrive import REDRIVING
from sluice_spark.runs.run import Run
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, Fence
from sluice_spark.sinks.delta.slice import Slice
from sluice_spark.sources.base import Records
from sluice_spark.sources.log import LogRecords
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.sources.times import times_of

__all__ = ["IntervalRun"]

_LOOKED_AT = 16
"""Stretches of offsets that are read one by one to find out what is wrong with them."""
_AS_BEFORE = "sink and quarantine are as they were before this run"

Key = tuple[str, int]


@dataclass
class IntervalRun(Run):
    """Reads the offsets of an interval of record time again, and replaces exactly the interval's rows among them.

    Parameters
    ----------
    interval
        Of Kafka's record time.

    Notes
    -----
    It touches neither the live checkpoint nor what lies behind the live position, and needs a lease of its own
    interval only: others may be replaced, and live runs append, at the same time. The sink changes in one transaction,
    then the quarantine in another; the sink's note says what the quarantine must become. Killed before the first, the
    tables are as they were; after it, the next run of the interval, of one that overlaps it, or the next live run, does
    the rest. Run again, it leaves the same rows.
    """

    kind: ClassVar[str] = "interval"

    interval: Interval
    _committed: bool = field(default=False, init=False)
    _fence: Fence | None = field(default=None, init=False)
    _unseen: list[str] = field(default_factory=list, init=False)
    """Notes from before the run was planned: until then the ledger has no run to keep them with."""

    @property
    def scope(self) -> str:
        """Its interval."""
        return self.interval.key

    def _drive(self, lease: Lease) -> str | None:
        try:
            return self._replace(lease)
        except LeaseHeldError:
            raise
        except SluiceError as error:
            if not self._committed:
                error.state = _AS_BEFORE
            raise

    def _replace(self, lease: Lease) -> str | None:
        name = self.pipeline.name
        redriven = self.context.redriven()
        self._examine(redriven)
        # whoever moves the same records while this driver is frozen makes it give way
        self._fence = Fence(redriven.replacing().table_version(), self._is_rival)
        self._beside_redriving()
        self._beside_overlapping(lease)
        with self.context.watch.phase("planning"):
            known = self.ledger.interval(name, self.interval.key)
            if known is not None:
                enter_interval(self.ledger, lease, self._tables(known.number))
            states, available = self._available()
            resolved = self._resolve(lease, known, available)
            lost = [
                LostRange(common, row.reason, row.sample)
                for row in self.ledger.lost(name)
                for common in overlaps([row.range], resolved.ranges)
            ]
            readable = subtract(resolved.read, [item.range for item in lost])
            passed = subtract(resolved.passed, [item.range for item in lost])
            kafka, log, segments = available.split(readable)
            number = self.ledger.interval_resolved(
                lease,
                self.interval.key,
                ranges=resolved.ranges,
                whole=resolved.whole,
                topic_ids=ids_of(states) | self.ledger.topic_ids(name),
            )
            tables = self._tables(number)
        ranges = [r for r in resolved.ranges if len(r)]
        self._plan(lease, ranges, states, epoch=-number, sources={"kafka": kafka, "log": log} if log else None)
        self._say(lease, resolved, lost, log)
        if readable:
            spark = self.context.session()
            source = self._source(spark, available, kafka, log, segments)
            with self.context.watch.phase("query"):
                self._write(lease, spark, tables, ranges, readable, lost, passed, source)
            point("query-ended")
        return self._judge(lease, tables.sink)

    def _tables(self, number: int) -> Tables:
        return self.context.redriven().of_interval(self.pipeline.name, self.interval.key, number)

    def _plan(
        self, lease: Lease, ranges: Sequence[OffsetRange], states: Sequence[TopicState], *, epoch: int, **more: Any
    ) -> None:
        super()._plan(lease, ranges, states, epoch=epoch, interval=self.interval.key, **more)

    def _to_judge(self) -> list[str]:
        return [self.context.run_id]

    def _beside_redriving(self) -> None:
        """Redriving moves records from the quarantine into the sink: not beside this."""
        name = self.pipeline.name
        redriven = self.context.redriven()
        last = self.ledger.last_batch(name, REDRIVEN)
        run = self.ledger.at_work(name).get(REDRIVING)
        if run is None and redriven.sink.version() <= (last.batch if last else -1):
            return
        raise LeaseHeldError(
            f"pipeline {name!r}: " + (f"run {run!r} redrives" if run else "a run that redrove died halfway"),
            state=_AS_BEFORE,
            next_step="try again when it has ended" if run else "let a live run of the pipeline end it, then try again",
        )

    def _beside_overlapping(self, lease: Lease) -> None:
        """Of two drivers that replace the same rows, the sink would keep one's, and the quarantine the other's."""
        name = self.pipeline.name
        self._alone_in_its_time()
        tables = self.context.redriven()
        for known in half_done(self.ledger, name, tables.replacing()):
            if known.interval != self.scope and self.interval.overlaps(Interval.from_key(known.interval)):
                take_over(self.ledger, lease, tables, known)

    def _alone_in_its_time(self) -> None:
        name = self.pipeline.name
        for scope, run in self.ledger.at_work(name).items():
            if scope in ("", REDRIVING, self.scope) or not self.interval.overlaps(Interval.from_key(scope)):
                continue
            raise LeaseHeldError(
                f"pipeline {name!r}: run {run!r} replaces {Interval.from_key(scope)}, which overlaps {self.interval}",
                state=_AS_BEFORE,
                next_step="try again when it has ended",
            )

    def _is_rival(self, note: Mapping[str, Any]) -> bool:
        """Tell whether a commit moved records that this run may be about to replace."""
        if note.get("interval") is None:
            return note.get("of") == "quarantined"
        return bool(note["interval"] != self.scope and self.interval.overlaps(Interval.from_key(note["interval"])))

    # --- which offsets ---------------------------------------------------------------------------------------------

    def _available(self) -> tuple[list[TopicState], Available]:
        source = self.context.opened_source()
        log = self.context.redriven().log
        log.refresh()
        trouble = None
        try:
            states = source.snapshot()
        except SourceUnreachableError as error:
            logger.warning("%s: only the write-ahead log is asked", error.what)
            states, trouble = [], error
        known = self.ledger.topic_ids(self.pipeline.name)
        return states, Available.of(
            states, known, log, source, trouble=trouble
        )  # fmt: skip

    def _source(
        self,
        spark: SparkSession,
        available: Available,
        kafka: Sequence[OffsetRange],
        log: Sequence[OffsetRange],
        segments: Sequence[Segment],
    ) -> RecordsInParts:
        sources: list[tuple[Records, Sequence[OffsetRange]]] = [
            (self.context.reader(spark, available.source), kafka),
            (LogRecords(spark, available.log, tuple(segments)), log),
        ]
        return RecordsInParts(tuple((records, tuple(parts)) for records, parts in sources if parts))

    def _resolve(self, lease: Lease, known: IntervalRow | None, available: Available) -> Resolved:
        """Return the interval's offsets, when all of them that matter can be read.

        Raises
        ------
        OffsetsGoneError
            When some are in neither Kafka nor the log.
        """
        name = self.pipeline.name
        reached = self.ledger.reached(name)
        ids = self.ledger.topic_ids(name)
        fixed = [
            r for r in known.ranges if known.topic_ids.get(r.topic) == ids.get(r.topic)
        ] if known is not None else []  # fmt: skip
        gaps = missing(
            name,
            reached,
            available,
            lambda: [a.range for a in self.ledger.accounts(name) if a.counts.absent == len(a.range)],
        )
        lost = [row.range for row in self.ledger.lost(name)]
        times = self.ledger.times(name)
        resolved = resolve(self.interval, reached, available, times, gaps, lost)
        if resolved.unknown:
            times += self._look_at_times(lease, available, resolved.unknown)
            resolved = resolve(self.interval, reached, available, times, gaps, lost)
        excluded = [t.range for t in times if not t.meets(*self.interval.milliseconds)]
        doubtful = subtract(gaps, [*lost, *excluded])
        # what was resolved once was there to be read: nobody knows which of its records a filter left out
        gone = overlaps(doubtful, fixed)
        accounts = self.ledger.accounts(name) if doubtful else []
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
            self._unseen.append(
                f"{sum(map(len, filtered)):,} offsets are in neither Kafka nor the write-ahead log any more. None of "
                f"the rows of {self.interval} came from them, but live runs filtered some of their records, which "
                f"cannot be looked at again: {describe(filtered)}"
            )
        return resolved

    def _look_at_times(self, lease: Lease, available: Available, unknown: Sequence[OffsetRange]) -> list[Times]:
        """Read the times of records, and nothing else, where no account has them; enter them into the ledger."""
        logger.info("looking at the times of %d offsets, which no account has", sum(map(len, unknown)))
        source = self._source(self.context.session(), available, *available.split(unknown))
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
                f"pipeline {self.pipeline.name!r}: Kafka dropped records while their times were looked at: "
                f"{describe(gone)}",
                next_step="run again. Raise the topic's retention for the next time",
                ranges=gone,
            )
        self.ledger.times_found(lease, found)
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
        name = self.pipeline.name
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
        source = self._source(self.context.session(), available, *available.split(stray))
        try:
            rows = source.read(stray).select("topic", "partition", "offset").collect()
        except SluiceError:
            raise
        except Exception as error:
            raise source.diagnose(error, stray) from error
        there = [OffsetRange(row[0], row[1], row[2], row[2] + 1) for row in rows]
        if vanished := subtract(stray, there):
            return self._compacted(vanished)
        return CheckpointError(
            f"pipeline {self.pipeline.name!r}: rows of {self.interval} stand in the tables with offsets whose records "
            f"have another time: {describe(stray)}. Was _timestamp changed, by the transform or in the table?",
            next_step=f"give these rows the times of their records again (sluice audit {self.pipeline.name} --deep "
            "says what else differs). An interval cannot replace rows with another _timestamp",
        )

    def _compacted(self, vanished: Sequence[OffsetRange]) -> OffsetsGoneError:
        return OffsetsGoneError(
            f"pipeline {self.pipeline.name!r}: the tables hold records of {self.interval} that Kafka has "
            f"compacted away: {describe(vanished)}",
            next_step="this interval can no longer be replaced without losing them",
            ranges=vanished,
        )

    def _say(self, lease: Lease, resolved: Resolved, lost: Sequence[LostRange], log: Sequence[OffsetRange]) -> None:
        notes = list(self._unseen)
        if resolved.beyond:
            count = sum(map(len, resolved.beyond))
            notes.append(f"{count:,} offsets lie beyond the live position and are left to live runs: "
                         f"{describe(resolved.beyond)}")  # fmt: skip
        if not resolved.ranges:
            notes.append("no live run has read anything yet: run the pipeline without an interval first")
        if lost:
            notes.append(f"{sum(len(i.range) for i in lost):,} offsets are lost and stay so until they are redriven")
        if log:
            notes.append(f"read from the write-ahead log, since Kafka no longer has them: {describe(log)}")
        for note in notes:
            logger.warning("%s", note)
            self.ledger.degraded(lease, note)

    # --- replacing -------------------------------------------------------------------------------------------------

    def _write(
        self,
        lease: Lease,
        spark: SparkSession,
        tables: Tables,
        ranges: Sequence[OffsetRange],
        readable: Sequence[OffsetRange],
        lost: Sequence[LostRange],
        passed: Sequence[OffsetRange],
        source: RecordsInParts,
    ) -> None:
        start, end = self.interval.milliseconds
        for table in (tables.replacing(), tables.quarantine):
            table.check_replaceable()
        writer = replace(self.context.writer(spark, tables), only=_between(start, end))
        batch = tables.sink.version() + 1
        name = tables.batch_name(batch)
        with self.context.watch.phase("ledger"):
            self.ledger.batch_started(lease, epoch=tables.epoch.number, batch=batch, ranges=ranges)
        point("batch-started")
        with self.context.watch.phase("batches"):
            prepared = self._prepare(writer, name, ranges, readable, lost, passed, source)
        if prepared.outside:
            aside = f"{prepared.outside:,} records were read and lie outside of the interval: counted as filtered"
            self.ledger.degraded(lease, aside)
        if passed:
            between = f"{sum(map(len, passed)):,} offsets between them hold no record of the interval and were not read"
            self.ledger.degraded(lease, f"{between}: counted as filtered")
        with self.context.watch.phase("commits"):
            gone = Slice(readable, start, end)
            check = self._nothing_vanishes(prepared, source, passed)
            check(tables.quarantine.held(gone))
            lease.verify()
            self._beside_redriving()
            self._alone_in_its_time()
            if prepared.quarantine:
                tables.quarantine.admit()
            point("before-sink-commit")
            note = {
                "pipeline": self.pipeline.name,
                "run": self.context.run_id,
                "interval": self.interval.key,
                "accounts": [a.as_dict() for a in prepared.accounts],
                "slice": [[r.topic, r.partition, r.start, r.end] for r in readable],
                "refused": prepared.quarantine.folder if prepared.quarantine else None,
            }
            taken = tables.replacing().replace(
                gone, prepared.staged, writer.schema, batch, note, name=name, check=check, fence=self._fence
            )  # fmt: skip
            if taken is None:
                raise LeaseHeldError(
                    f"another driver replaced {self.interval} in {tables.sink.path} first",
                    state="the interval is in the table once; this driver's files are not part of it",
                    next_step="run again, if it must be replaced once more",
                )
            self._committed = True
            point("sink-committed")
            moved = replace_quarantined(tables, gone, prepared.quarantine or NOTHING, batch, self.context.run_id)
            point("quarantine-committed")
        tables.sweep(batch)  # before the account: a driver that dies here leaves the rest to who enters it
        with self.context.watch.phase("ledger"):
            self.ledger.batch_committed(
                lease,
                epoch=tables.epoch.number,
                batch=batch,
                accounts=prepared.accounts,
                replaced={
                    r: (taken.get((r.topic, r.partition), 0), moved.get((r.topic, r.partition), 0)) for r in ranges
                },
            )
        point("batch-recorded")
        logger.info(
            "%s: %d rows replaced by %d", self.interval, sum(taken.values()), prepared.staged.rows
        )  # fmt: skip

    def _prepare(
        self,
        writer: BatchWriter,
        name: str,
        ranges: Sequence[OffsetRange],
        readable: Sequence[OffsetRange],
        lost: Sequence[LostRange],
        passed: Sequence[OffsetRange],
        source: RecordsInParts,
    ) -> PreparedBatch:
        try:
            return writer.prepare(source.read(readable), name, ranges, source, lost, passed)
        except SluiceError:
            raise
        except Exception as error:
            raise source.diagnose(error, readable) from error

    def _nothing_vanishes(
        self, prepared: PreparedBatch, source: RecordsInParts, passed: Sequence[OffsetRange]
    ) -> Callable[[Mapping[Key, Any]], None]:
        """Return a check that refuses to take out rows whose records the source no longer has, by compaction."""
        gaps = {(a.range.topic, a.range.partition): a.range for a in prepared.accounts if a.counts.absent}
        not_read = [*(item.range for item in prepared.lost), *passed]
        read: dict[Key, Any] = {}

        def check(offsets: Mapping[Key, Any]) -> None:
            vanished = []
            for key in sorted(set(gaps) & set(offsets)):
                if key not in read:
                    frame = source.read(subtract([gaps[key]], not_read)).select("offset").toArrow()
                    read[key] = frame.column("offset").to_numpy()
                missing = np.setdiff1d(offsets[key], read[key])
                vanished += [OffsetRange(*key, int(o), int(o) + 1) for o in missing[:1000]]
            if vanished:
                raise self._compacted(vanished)

        return check


def _between(start: int, end: int) -> Column:
    time = F.col("timestamp")
    return (time >= F.timestamp_millis(F.lit(start))) & (time < F.timestamp_millis(F.lit(end)))
