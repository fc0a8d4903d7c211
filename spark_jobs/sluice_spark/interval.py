"""A run of an interval: the rows of a stretch of record time made anew, beside the live pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from sluice.errors import (
    LeaseHeldError,
    OffsetsGoneError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
)
from sluice.faults import point
from sluice.interval import Interval
from sluice.kafka.cluster import TopicState, ids_of
from sluice.ledger import REDRIVEN, IntervalRow, Lease
from sluice.ranges import LostRange, OffsetRange, describe, overlaps, subtract
from sluice.resolve import Available, Resolved, missing, resolve
from sluice_spark.batch import BatchWriter, PreparedBatch, Records
from sluice_spark.failures import classify
from sluice_spark.log import logger
from sluice_spark.reconcile import enter_interval, half_done, replace_quarantined, take_over
from sluice_spark.recovery.wal import LogRecords
from sluice_spark.redrive import REDRIVING
from sluice_spark.run import Run
from sluice_spark.sinks.delta import Fence
from sluice_spark.sinks.slice import Slice
from sluice_spark.sinks.staged import NOTHING
from sluice_spark.sources.kafka import KafkaRecords
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.tables import Tables

__all__ = ["IntervalRun"]

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
        self._examine(Tables.redriven(self.pipeline, self.home))
        self._beside_redriving()
        self._beside_overlapping(lease)
        with self.watch.phase("planning"):
            known = self.ledger.interval(name, self.interval.key)
            if known is not None:
                enter_interval(self.ledger, lease, self._tables(known.number))
            states, available = self._available()
            resolved = self._resolve(known, available)
            lost = [
                LostRange(common, row.reason, row.sample)
                for row in self.ledger.lost(name)
                for common in overlaps([row.range], resolved.ranges)
            ]
            readable = subtract([r for r in resolved.ranges if len(r)], [item.range for item in lost])
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
            spark = self._session()
            sources: list[tuple[Records, Sequence[OffsetRange]]] = [
                (KafkaRecords(spark, available.cluster.settings, self.pipeline.kafka, available.cluster), kafka),
                (LogRecords(spark, available.log, tuple(segments)), log),
            ]
            source = RecordsInParts(tuple((records, tuple(parts)) for records, parts in sources if parts))
            with self.watch.phase("query"):
                self._write(lease, spark, tables, ranges, readable, lost, source)
            point("query-ended")
        return self._judge(lease, tables.sink)

    def _tables(self, number: int) -> Tables:
        return Tables.redriven(self.pipeline, self.home).of_interval(self.pipeline.name, self.interval.key, number)

    def _plan(
        self, lease: Lease, ranges: Sequence[OffsetRange], states: Sequence[TopicState], *, epoch: int, **more: Any
    ) -> None:
        super()._plan(lease, ranges, states, epoch=epoch, interval=self.interval.key, **more)

    def _to_judge(self) -> list[str]:
        return [self.run]

    def _beside_redriving(self) -> None:
        """Redriving moves records from the quarantine into the sink: not beside this."""
        name = self.pipeline.name
        redriven = Tables.redriven(self.pipeline, self.home)
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
        tables = Tables.redriven(self.pipeline, self.home)
        for known in half_done(self.ledger, name, tables.sink):
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
        source, cluster = self.pipeline.kafka, self._cluster()
        log = Tables.redriven(self.pipeline, self.home).log
        log.refresh()
        trouble = None
        try:
            states = cluster.snapshot(source.topics, isolation_level=source.isolation_level)
        except SourceUnreachableError as error:
            logger.warning("%s: only the write-ahead log is asked", error.what)
            states, trouble = [], error
        known = self.ledger.topic_ids(self.pipeline.name)
        return states, Available.of(
            states, known, log, cluster, isolation_level=source.isolation_level, trouble=trouble
        )  # fmt: skip

    def _resolve(self, known: IntervalRow | None, available: Available) -> Resolved:
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
        final = known is not None and known.whole
        gaps = missing(
            name,
            reached,
            available,
            lambda: [a.range for a in self.ledger.accounts(name) if a.counts.absent == len(a.range)],
        )
        resolved = resolve(self.interval, self.pipeline.interval.slack, reached, available, fixed, final=final)
        lost = [row.range for row in self.ledger.lost(name)]
        gone = subtract(overlaps(gaps, resolved.ranges), lost)
        settled = {(r.topic, r.partition) for r in fixed}
        starts = {(r.topic, r.partition): r.start for r in resolved.ranges}
        # where the first record that can be read is not older than the interval's start, older ones may have been its
        doubtful = [
            gap
            for gap in gaps
            if (gap.topic, gap.partition) not in settled and starts[gap.topic, gap.partition] == gap.end
        ]
        gone += self._gone_of(doubtful)
        if gone:
            recreated = [t for t in {r.topic for r in gone} if not any(k[0] == t for k in available.kafka)]
            if recreated and available.trouble is None:
                raise TopicRecreatedError(
                    f"pipeline {name!r}: topic {recreated[0]!r} was made anew, and the write-ahead log does not hold "
                    f"all of {self.interval}: {describe(gone)}",
                    next_step="these records are gone with the old topic; an interval of the new one needs a live run "
                    "first",
                )
            firsts = ", ".join(
                f"{t}-{n} from offset {starts[t, n]}" for t, n in sorted({(r.topic, r.partition) for r in gone})
            )
            raise OffsetsGoneError(
                f"pipeline {name!r}: records of {self.interval} are in neither Kafka nor the write-ahead log any more: "
                f"{describe(gone)}",
                next_step=f"choose an interval that begins later (what can be read begins: {firsts}). Strategy wal "
                "keeps records for wal.keep, beyond Kafka's retention",
                ranges=gone,
            )
        return resolved

    def _gone_of(self, doubtful: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return of ranges that nobody can read those that held records of the interval, by what the tables say.

        Live runs that read them left their rows with offset and time in sink or quarantine; a range that no live run
        read is counted in: nobody knows what it held.
        """
        if not doubtful:
            return []
        read = [a.range for a in self.ledger.accounts(self.pipeline.name)]
        unknown = subtract(doubtful, read)
        tables = Tables.redriven(self.pipeline, self.home)
        gone = Slice(overlaps(doubtful, read), *self.interval.milliseconds)
        found = [key for table in (tables.sink, tables.quarantine) for key in table.held(gone)]
        return sorted({*unknown, *(r for r in gone.ranges if (r.topic, r.partition) in found)})

    def _say(self, lease: Lease, resolved: Resolved, lost: Sequence[LostRange], log: Sequence[OffsetRange]) -> None:
        notes = []
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
        source: RecordsInParts,
    ) -> None:
        start, end = self.interval.milliseconds
        for table in (tables.sink, tables.quarantine):
            table.check_replaceable()
        writer = replace(self.writer(spark, tables), only=_between(start, end))
        batch = tables.sink.version() + 1
        name = tables.batch_name(batch)
        with self.watch.phase("ledger"):
            self.ledger.batch_started(lease, epoch=tables.epoch.number, batch=batch, ranges=ranges)
        point("batch-started")
        with self.watch.phase("batches"):
            prepared = self._prepare(writer, name, ranges, readable, lost, source)
        if prepared.outside:
            aside = f"{prepared.outside:,} records were read and lie outside of the interval: counted as filtered"
            self.ledger.degraded(lease, aside)
        with self.watch.phase("commits"):
            gone = Slice(readable, start, end)
            # whoever moves the same records while this driver is frozen makes it give way
            fence = Fence(tables.sink.table_version(), self._is_rival)
            check = self._nothing_vanishes(prepared, source, writer)
            check(tables.quarantine.held(gone))
            lease.verify()
            self._beside_redriving()
            self._alone_in_its_time()
            point("before-sink-commit")
            note = {
                "pipeline": self.pipeline.name,
                "run": self.run,
                "interval": self.interval.key,
                "accounts": [a.as_dict() for a in prepared.accounts],
                "slice": [[r.topic, r.partition, r.start, r.end] for r in readable],
                "refused": prepared.quarantine.folder if prepared.quarantine else None,
            }
            taken = tables.sink.replace(
                gone, prepared.staged, writer.schema, batch, note, name=name, check=check, fence=fence
            )  # fmt: skip
            if taken is None:
                raise LeaseHeldError(
                    f"another driver replaced {self.interval} in {tables.sink.path} first",
                    state="the interval is in the table once; this driver's files are not part of it",
                    next_step="run again, if it must be replaced once more",
                )
            self._committed = True
            point("sink-committed")
            moved = replace_quarantined(tables, gone, prepared.quarantine or NOTHING, batch, self.run)
            point("quarantine-committed")
        tables.sweep(batch)  # before the account: a driver that dies here leaves the rest to who enters it
        with self.watch.phase("ledger"):
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
        source: RecordsInParts,
    ) -> PreparedBatch:
        try:
            return writer.prepare(source.again(readable), name, ranges, source, lost)
        except SluiceError:
            raise
        except Exception as error:
            for records, parts in source.parts:
                if isinstance(records, LogRecords):
                    records.explain(parts)
            raise classify(error, lambda: source.gone(readable)) from error

    def _nothing_vanishes(
        self, prepared: PreparedBatch, source: RecordsInParts, writer: BatchWriter
    ) -> Callable[[Mapping[Key, Any]], None]:
        """Return a check that refuses to take out rows whose records the source no longer has, by compaction."""
        gaps = {(a.range.topic, a.range.partition): a.range for a in prepared.accounts if a.counts.absent}
        lost = [item.range for item in prepared.lost]
        read: dict[Key, Any] = {}

        def check(offsets: Mapping[Key, Any]) -> None:
            vanished = []
            for key in sorted(set(gaps) & set(offsets)):
                if key not in read:
                    frame = source.again(subtract([gaps[key]], lost)).select("offset").toArrow()
                    read[key] = frame.column("offset").to_numpy()
                missing = np.setdiff1d(offsets[key], read[key])
                vanished += [OffsetRange(*key, int(o), int(o) + 1) for o in missing[:1000]]
            if vanished:
                raise OffsetsGoneError(
                    f"pipeline {self.pipeline.name!r}: the tables hold records of {self.interval} that Kafka has "
                    f"compacted away: {describe(vanished)}",
                    next_step="this interval can no longer be replaced without losing them",
                    ranges=vanished,
                )

        return check


def _between(start: int, end: int) -> Column:
    time = F.col("timestamp")
    return (time >= F.timestamp_millis(F.lit(start))) & (time < F.timestamp_millis(F.lit(end)))
