"""A run of an interval: reprocesses a range of record time, beside the live pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from sluice.errors import (
    LeaseHeldError,
    OffsetsGoneError,
    SluiceError,
)
from sluice.facts import Windows
from sluice.faults import point
from sluice.ledger import REDRIVEN, Lease
from sluice.ledger.events import Degraded
from sluice.ranges import LostRange, OffsetRange, describe, overlaps, subtract
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice.run.resolve import Resolved
from sluice.sources.state import Key, TopicState, ids_of, joined_ids
from sluice_spark.batch.writer import BatchWriter, Places, PreparedBatch
from sluice_spark.engine.logs import logger
from sluice_spark.runs.epoch_end import emptied
from sluice_spark.runs.interval_offsets import IntervalOffsets
from sluice_spark.runs.reconcile import (
    RETRACTED,
    enter_interval,
    half_done,
    replace_quarantined,
    replaced_in,
    take_over,
    written_before,
)
from sluice_spark.runs.redrive import REDRIVING
from sluice_spark.runs.run import Run
from sluice_spark.runs.source_check import SourceCheck
from sluice_spark.runs.stateful_route import refuse_other
from sluice_spark.runs.steps import BatchSteps
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, Fence, RowsRefusedError, overtaken
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sources.base import Records
from sluice_spark.transforms.lookups import Lookups

__all__ = ["IntervalBatch", "IntervalRun", "Leaving"]


class Leaving(NamedTuple):
    """What leaves sink and quarantine.

    Attributes
    ----------
    check
        Gets the offsets that leave the sink, and raises if they must stay.
    notes
        What the account of the run has to say of it.
    told
        What the commit's metadata has to say of windows, beside what was prepared.
    """

    rows: Slice
    refused: Slice
    check: Callable[[Mapping[Key, Any]], None]
    notes: tuple[str, ...] = ()
    told: Mapping[str, Any] = MappingProxyType({})


_UNREADABLE = "gone from the source, or damaged in the write-ahead log"
_GONE = "in neither the source nor the write-ahead log"
_AS_BEFORE = "this run replaced nothing in sink and quarantine"


@dataclass
class IntervalRun(Run):
    """Reads the offsets of an interval of record time again and replaces exactly the interval's rows.

    Parameters
    ----------
    interval
        The interval of Kafka's record time.

    Notes
    -----
    The run changes neither the live checkpoint nor anything beyond the live position. It needs only the lease of its
    interval: live runs may append, and other intervals be replaced, at the same time.

    The sink is changed in one transaction, then the quarantine in another. The commit metadata of the sink's commit
    says what the quarantine must hold. If the driver dies before the first transaction, the tables are unchanged. If it
    dies after that, the next run of the interval, of an overlapping interval, or the next live run finishes the work.
    Idempotent: running it again leaves the same rows.
    """

    kind: ClassVar[str] = "interval"

    interval: Interval
    _batch: IntervalBatch | None = field(default=None, init=False)
    _offsets: IntervalOffsets = field(init=False)
    _check: SourceCheck = field(init=False)
    _read_from: Mapping[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._offsets = IntervalOffsets(self.context, self.interval)

    @property
    def scope(self) -> str:
        """The key of its interval."""
        return self.interval.key

    def _drive(self, lease: Lease) -> str | None:
        try:
            return self._replace(lease)
        except LeaseHeldError:
            raise
        except SluiceError as error:
            if self._batch is None or not self._batch.committed:
                error.state = _AS_BEFORE
            raise

    def _replace(self, lease: Lease) -> str | None:
        name = self.pipeline.name
        # the file may have no dedupe any more
        refuse_other(self.pipeline, self.context.tables(self.ledger.offsets.epoch(name)))
        redriven = self.context.redriven()
        self._examine(redriven)
        # the commit is refused if another run moves the same records while this driver is frozen
        since = redriven.replacing().table_version()
        self._beside_redriving()
        self._beside_overlapping(lease)
        with self.context.watch.phase("planning"):
            known = next(iter(self.ledger.offsets.intervals(name, self.interval.key)), None)
            if known is not None:
                enter_interval(self.ledger, lease, self._tables(known.number))
            reads_log = self.context.recovery in (Recovery.WAL, Recovery.IGNORE_RANGE)
            states, available = self._offsets.available(without_log=not reads_log)
            self._check = SourceCheck(self.context, available.source)
            resolved = self._offsets.resolve(lease, known, available)
            lost = [
                LostRange(common, row.reason, row.sample)
                for row in self.ledger.offsets.never_read(name)
                for common in overlaps([row.range], resolved.ranges)
            ]
            lost += [LostRange(r, _GONE) for r in subtract(resolved.given_up, [item.range for item in lost])]
            readable = subtract(resolved.read, [item.range for item in lost])
            passed = subtract(resolved.passed, [item.range for item in lost])
            kafka, log, segments = available.split(readable, log_first=self.context.recovery is Recovery.WAL)
            if kafka:
                self._check.not_rewritten(self.ledger.offsets.reached(name))
            self._read_from = {r.topic: ids_of(states)[r.topic] for r in kafka if r.topic in ids_of(states)}
            number = self.ledger.interval_resolved(
                lease,
                self.interval.key,
                ranges=resolved.ranges,
                whole=resolved.whole,
                topic_ids=joined_ids(self.ledger.runs.topic_ids(name), states),
            )
            tables = self._tables(number)
        ranges = [r for r in resolved.ranges if len(r)]
        self._plan(lease, ranges, states, epoch=-number, sources={"kafka": kafka, "log": log} if log else None)
        self._say(lease, resolved, lost, subtract(log, available.kafka.values()))
        if self._due(tables, readable):
            spark = self.context.session()
            self.context.warm_up(spark, self.context.recovery, sum(map(len, readable)))
            source = self._offsets.source(spark, available, kafka, log, segments)
            if self.context.recovery is Recovery.IGNORE_RANGE and (
                gone := self._offsets.unreadable(source, available, readable, segments)
            ):
                readable = self._given_up(lease, readable, gone)
                lost += [LostRange(r, _UNREADABLE) for r in gone]
                segments = [s for s in segments if overlaps([s.range], readable)]
                source = self._offsets.source(spark, available, subtract(kafka, gone), subtract(log, gone), segments)
            strategy, tell = self.context.strategy, self.context.teller(lease)
            with self.context.watch.phase("query"), strategy.hold_when_read(spark, source, tell) as held:
                for table in (tables.replacing(), tables.quarantine, tables.also):
                    table.check_replaceable()
                number = tables.sink.version() + 1
                writer = self._writer(spark, tables, self.context.lookups(tables, number, own=True))
                self._batch = IntervalBatch(
                    self.context, lease, spark, tables, number, ranges, writer, self, readable, lost, passed, held,
                    label=str(self.interval), fence=Fence(since, self._is_rival),
                )  # fmt: skip
                self._batch.execute()
            point("query-ended")
        return self._judge(lease, tables.sink)

    def _given_up(
        self, lease: Lease, readable: Sequence[OffsetRange], gone: Sequence[OffsetRange]
    ) -> list[OffsetRange]:
        """Return what is left of the readable ranges, after saying what cannot be read of them."""
        left, count = subtract(readable, gone), sum(map(len, gone))
        what = f"{count:,} offsets of {self.interval} cannot be read, from the source or the write-ahead log: "
        if not left:
            raise OffsetsGoneError(
                f"pipeline {self.pipeline.name!r}: {what}{describe(gone)}",
                next_step="choose another interval: nothing of this one can be read",
                ranges=gone,
            )
        text = f"{what}this run counts them as lost, and rows of them stay as they were: {describe(gone)}"
        logger.warning("%s", text)
        self.ledger.record(lease, Degraded(note=text))
        return left

    def _tables(self, number: int) -> Tables:
        return self.context.redriven().of_interval(self.pipeline.name, self.interval.key, number)

    def _plan(
        self, lease: Lease, ranges: Sequence[OffsetRange], states: Sequence[TopicState], *, epoch: int, **more: Any
    ) -> None:
        super()._plan(lease, ranges, states, epoch=epoch, interval=self.interval.key, **more)

    def _to_judge(self) -> list[str]:
        return [self.context.run_id]

    def _beside_redriving(self) -> None:
        """Refuse to run beside a redrive, which moves records from the quarantine into the sink."""
        name = self.pipeline.name
        redriven = self.context.redriven()
        last = self.ledger.offsets.last_batch(name, REDRIVEN)
        run = self.ledger.runs.at_work(name).get(REDRIVING)
        if run is None and redriven.sink.version() <= (last.batch if last else -1):
            return
        raise LeaseHeldError(
            f"pipeline {name!r}: "
            + (f"run {run!r} redrives" if run else "a redrive or a retraction died before it was recorded"),
            state=_AS_BEFORE,
            next_step="try again when it has ended" if run else "first run the pipeline live: it finishes that",
        )

    def _beside_overlapping(self, lease: Lease) -> None:
        """Refuse to run beside an overlapping interval: sink and quarantine could keep rows of different runs."""
        name = self.pipeline.name
        self._alone_in_its_time()
        tables = self.context.redriven()
        for known in half_done(self.ledger, name, tables.replacing()):
            if known.interval != self.scope and self.interval.overlaps(Interval.from_key(known.interval)):
                take_over(self.ledger, lease, tables, known)

    def _alone_in_its_time(self) -> None:
        name = self.pipeline.name
        for scope, run in self.ledger.runs.at_work(name).items():
            if scope in ("", REDRIVING, self.scope) or not self.interval.overlaps(Interval.from_key(scope)):
                continue
            raise LeaseHeldError(
                f"pipeline {name!r}: run {run!r} replaces {Interval.from_key(scope)}, which overlaps {self.interval}",
                state=_AS_BEFORE,
                next_step="try again when it has ended",
            )

    def _is_rival(self, note: Mapping[str, Any]) -> bool:
        """Return whether a commit moved records that this run may replace, or took rows back that it would write."""
        if note.get("interval") is None:
            return note.get("of") in ("quarantined", RETRACTED) or emptied(note)
        return bool(note["interval"] != self.scope and self.interval.overlaps(Interval.from_key(note["interval"])))

    def _say(self, lease: Lease, resolved: Resolved, lost: Sequence[LostRange], log: Sequence[OffsetRange]) -> None:
        notes = list(self._offsets.notes)
        if resolved.beyond:
            count = sum(map(len, resolved.beyond))
            notes.append(f"{count:,} offsets are beyond the live position and are left to live runs: "
                         f"{describe(resolved.beyond)}")  # fmt: skip
        if not any(self.ledger.offsets.reached(self.pipeline.name).values()):
            notes.append("no live run has read anything yet: run the pipeline without an interval first")
        if lost:
            count = sum(len(i.range) for i in lost if i.reason != _GONE)
            if count:
                notes.append(f"{count:,} offsets are lost, and stay lost until they are redriven")
        if log:
            notes.append(f"read from the write-ahead log, because Kafka no longer has them: {describe(log)}")
        for note in notes:
            logger.warning("%s", note)
            self.ledger.record(lease, Degraded(note=note))

    # --- the interval's batch --------------------------------------------------------------------------------------

    def unchanged(self) -> None:
        """Check that what was read is of the topics that the interval was planned for."""
        self._check.unchanged(self._read_from)

    def alone(self) -> None:
        """Check that no redrive and no overlapping interval is at work."""
        self._beside_redriving()
        self._alone_in_its_time()

    def _due(self, tables: Tables, readable: Sequence[OffsetRange]) -> bool:
        """Return whether there is anything to replace, or to replace it with."""
        return bool(readable)

    def records(self, source: Records, readable: Sequence[OffsetRange]) -> DataFrame:
        """Return the records of these ranges."""
        return source.read(readable)

    def _writer(self, spark: SparkSession, tables: Tables, lookups: Lookups) -> BatchWriter:
        """Return what prepares the interval's rows."""
        writer = self.context.writer(spark, tables, lookups)
        arrow = self.context.arrow(spark, writer, self.context.recovery)
        return replace(writer, within=self.interval.milliseconds, arrow=arrow)

    def leaving(self, batch: IntervalBatch) -> Leaving:
        """Return what the rows of a prepared batch take the place of, after checking that it may go."""
        gone = Slice(batch.readable, *self.interval.milliseconds)
        check = self._nothing_vanishes(batch)
        # a slice counts what it finds
        check(batch.tables.quarantine.held(Slice(batch.readable, *self.interval.milliseconds)))
        return Leaving(gone, gone, check)

    def _nothing_vanishes(self, batch: IntervalBatch) -> Callable[[Mapping[Key, Any]], None]:
        """Return a check that raises if rows to remove come from records that compaction removed from the source."""
        gaps = {(a.range.topic, a.range.partition): a.range for a in batch.prepared.accounts if a.counts.absent}
        not_read = [*(item.range for item in batch.prepared.lost), *batch.passed]
        read: dict[Key, Any] = {}

        def check(offsets: Mapping[Key, Any]) -> None:
            vanished = []
            for key in sorted(set(gaps) & set(offsets)):
                if key not in read:
                    frame = batch.source.read(subtract([gaps[key]], not_read)).select("offset").toArrow()
                    read[key] = frame.column("offset").to_numpy()
                missing = np.setdiff1d(offsets[key], read[key])
                vanished += [OffsetRange(*key, int(o), int(o) + 1) for o in missing[:1000]]
            if vanished:
                raise self._offsets.compacted(vanished)

        return check


@dataclass
class IntervalBatch(BatchSteps):
    """The one batch of an interval, which takes the place of what the tables have of it.

    Parameters
    ----------
    readable
        The ranges that are read.
    lost, passed
        The others: what cannot be read, and what holds no record of the interval.
    source
        Reads the records.
    """

    run: IntervalRun
    readable: Sequence[OffsetRange]
    lost: Sequence[LostRange]
    passed: Sequence[OffsetRange]
    source: Records
    committed: bool = field(default=False, init=False)
    """Whether the sink has the interval's rows."""
    _leaving: Leaving = field(init=False)
    _taken: Mapping[Key, int] = field(default_factory=dict, init=False)
    """How many records left the sink, and the quarantine, by partitions."""
    _moved: Mapping[Key, int] = field(default_factory=dict, init=False)
    _rows: int = field(default=0, init=False)
    """How many rows left the sink."""
    _said: set[str] = field(default_factory=set, init=False)

    def stage(self) -> PreparedBatch:
        try:
            records = self.run.records(self.source, self.readable)
            return self.writer.prepare(records, self.name, self.ranges, self.source, self.lost, self.passed)
        except SluiceError:
            raise
        except Exception as error:
            self.writer.lookups.refuse_gone()
            raise self.source.diagnose(error, self.readable) from error

    def verify(self) -> None:
        with self.context.watch.phase("commits"):
            self._leaving = self.run.leaving(self)
        if outside := self.prepared.outside:
            self._say(f"{outside:,} records that were read are outside of the interval: counted as filtered")
        if passed := sum(map(len, self.passed)):
            self._say(f"{passed:,} offsets that hold no record of the interval were not read: counted as filtered")
        for note in self._leaving.notes:
            self._say(note)
        windows = self.prepared.fact(Windows)
        if windows is not None:
            self.prepared = self.prepared.having(replace(windows, **self._leaving.told))
        self.run.unchanged()
        super().verify()
        self.run.alone()

    def note(self) -> dict[str, Any]:
        left = [r.as_list() for r in self._leaving.refused.ranges]
        return {"interval": self.run.interval.key, "slice": left}

    def places(self) -> Places:
        return Places(self._replace_rows, self._replace_refused, self._leaving.rows)

    def _replace_rows(self, note: Mapping[str, Any]) -> bool:
        leaving, tables = self._leaving, self.tables
        taken = tables.replacing().replace(
            leaving.rows, self.prepared.staged, self.writer.schema, self.number, note, name=self.name,
            check=leaving.check, fence=self.fence,
        )  # fmt: skip
        if taken is None:
            raise overtaken(
                f"replaced {self.run.interval} in {tables.sink.path}",
                state="the interval's rows are in the table once; this driver's files are not part of it",
                next_step="run again, if it must be replaced once more",
            )
        self.committed, self._taken = True, taken
        # before the quarantine is looked at for the same offsets; a database only counts what it deletes
        self._rows = leaving.rows.found or sum(taken.values())
        return True

    def _replace_refused(self) -> None:
        staged = self.prepared.quarantine or NOTHING
        self._moved = replace_quarantined(self.tables, self._leaving.refused, staged, self.number, self.context.run_id)

    def leave_out(self, error: RowsRefusedError) -> None:
        if self.committed:
            raise error
        super().leave_out(error)

    def record(self) -> None:
        windows = self.prepared.fact(Windows)
        if windows is not None:
            self.prepared = self.prepared.having(replace(windows, replaced=self._rows))
        super().record()
        logger.info("%s: %d rows replaced by %d", self.run.interval, self._rows, self.prepared.staged.rows)

    def recorded(self) -> dict[str, Any]:
        windows, ledger = self.prepared.fact(Windows), self.context.ledger
        before = None if windows is None else written_before(ledger, self.run.pipeline.name)
        return {"replaced": replaced_in(self.prepared.accounts, self._taken, self._moved, before)}

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
            self.context.ledger.record(self.lease, Degraded(note=text))
