"""A redrive run: writes lost ranges or quarantined records into the sink, from wherever they can still be read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.errors import ConfigError, LeaseHeldError, OffsetsGoneError, SluiceError
from sluice.facts.rescued import NONE, Rescued
from sluice.faults import point
from sluice.ledger import REDRIVEN, Lease, Ledger
from sluice.ledger.events import Redriven
from sluice.pipeline import Rows
from sluice.ranges import Counts, OffsetRange, RangeAccount, describe, overlaps, runs_of, subtract
from sluice.run.actions import Redrive
from sluice.run.locate import Located, locate
from sluice.run.redrive_plan import check_ranges, possible, states_for
from sluice.sources.state import TopicState
from sluice_spark.batch.account import Offsets, PromiseError, account_exactly
from sluice_spark.batch.quarantine import SCHEMA, held_records, take_out
from sluice_spark.batch.tally import rescued_in
from sluice_spark.batch.writer import BatchWriter, Places, PreparedBatch
from sluice_spark.decoders.base import RULE
from sluice_spark.engine.logs import logger
from sluice_spark.runs.epoch_end import emptied
from sluice_spark.runs.run import Run
from sluice_spark.runs.source_check import SourceCheck
from sluice_spark.runs.stateful_route import refuse_other
from sluice_spark.runs.steps import BatchSteps
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, Fence, RowsRefusedError, Staged
from sluice_spark.sources.base import Records, within
from sluice_spark.sources.log import LogRecords
from sluice_spark.strategies.ignore import can_be_ignored, dies_of, narrow

__all__ = ["REDRIVING", "RedriveRun", "portions", "refuse_beside_intervals", "windows"]

REDRIVING = "redrive"
"""The scope of the lease for redriving quarantined records; no interval is replaced meanwhile."""

_RANGES = 500
"""Maximum number of ranges in one commit: Spark's query plan grows with each."""

_STRETCHES = 5000
"""Maximum number of gapless ranges that one commit moves out of the quarantine: its metadata names each."""


@dataclass
class RedriveRun(Run):
    """Redrives open lost ranges, or quarantined records that decode and pass the row rules now, or drops these.

    Notes
    -----
    Each commit has an application id of its own, and its metadata names what was redriven. If the driver dies, the next
    live run or redrive of the pipeline records the commit in the ledger, so nothing is redriven twice. What cannot be
    read anywhere, or still fails, stays open or quarantined.
    """

    kind: ClassVar[str] = "redrive"

    action: Redrive

    def _drive(self, lease: Lease) -> str | None:
        possible(self.pipeline, quarantined=self.action.quarantined)
        check_ranges(self.ledger, self.pipeline.name, self.action.ranges)
        refuse_other(self.pipeline, self._reconciled(lease))  # the file may have no dedupe any more
        tables = self.context.redriven()
        if self.action.quarantined:
            self._plan(lease, [], [], epoch=REDRIVEN)
            with self.ledger.acquire(self.pipeline.name, self.context.run_id, scope=REDRIVING) as emptying:
                self._beside_intervals()
                self._from_quarantine(lease, emptying, tables)
        else:
            self._lost(lease, tables)
        tables.also.settled()
        return self._judge(lease, tables.sink)

    # --- lost ranges -----------------------------------------------------------------------------------------------

    def _lost(self, lease: Lease, tables: Tables) -> None:
        name, sink = self.pipeline.name, tables.replaceable
        # a reset may take all rows out while this driver is frozen; sinks without this cannot be emptied
        # nor may a live run find the same records in another cluster meanwhile
        fence = (
            None if sink is None else Fence(sink.table_version(), lambda n: emptied(n) or n.get("origins") is not None)
        )
        wanted = [row.range for row in self.ledger.offsets.lost(name, run_id=self.action.of_run)]
        if self.action.ranges:
            wanted = overlaps(wanted, self.action.ranges)
        with self.context.watch.phase("planning"):
            states = self._states({item.topic for item in wanted}) if wanted else []
            found = locate(wanted, tables.log, states, self.ledger.runs.topic_ids(name))
        if found.nowhere:
            logger.warning("no longer in the write-ahead log or the source: %s", describe(found.nowhere))
        self._plan(lease, found.found, [], epoch=REDRIVEN)
        if not found.found:
            return
        spark = self.context.session()
        writer = self._writer(spark, tables)
        with self.context.watch.phase("query"):
            for kind, source, ranges, unchanged in self._sources(spark, tables, found):
                if writer.screen is not None:  # an earlier portion may have found them in another cluster
                    ranges = overlaps(ranges, [row.range for row in self.ledger.offsets.lost(name)])
                if not ranges:
                    continue
                _LostBatch(
                    self.context, lease, spark, tables, tables.sink.version() + 1, ranges, writer, source, kind,
                    unchanged, label=f"redriving {sum(map(len, ranges)):,} offsets", fence=fence,
                ).execute()  # fmt: skip
        point("query-ended")

    def _writer(self, spark: SparkSession, tables: Tables) -> BatchWriter:
        """Return the writer; another attempt of a run joins the versions of the one that died."""
        lookups = self.context.lookups(tables, tables.sink.version() + 1, own=True)
        return self.context.writer(spark, tables, lookups)

    def _states(self, streams: Collection[str]) -> list[TopicState]:
        if not self.pipeline.source.kind.replayable:
            return []
        found, places = list[TopicState](), self.pipeline.source.config.everywhere()
        for config in places:
            try:
                found += states_for(
                    self.context.opened(config),
                    [s for s in streams if config.has(s)],
                    self.ledger,
                    self.pipeline.name,
                )
            except SluiceError as error:
                rest = "only the write-ahead log is searched" if len(places) == 1 else "it is not searched"
                logger.warning("%s: %s", error.what, rest)
        return found

    def _sources(
        self, spark: SparkSession, tables: Tables, found: Located
    ) -> Iterator[tuple[str, Records, list[OffsetRange], Callable[[], None]]]:
        """Return where portions are read from, and what checks after reading that they are of the same topics."""
        log, known = LogRecords(spark, tables.log, found.segments), self.ledger.runs.topic_ids(self.pipeline.name)
        places: list[tuple[str, Records, Sequence[OffsetRange], Callable[[], None]]] = [
            ("log", log, found.log, lambda: None)
        ]
        for config in self.pipeline.source.config.everywhere():
            here = [r for r in found.kafka if config.has(r.topic)]
            if here:
                source = self.context.opened(config)
                ids = {r.topic: known[r.topic] for r in here if r.topic in known}
                check = SourceCheck(self.context, source)
                check.not_rewritten(self.ledger.offsets.reached(self.pipeline.name))
                places.append(("kafka", self.context.reader(spark, source), here, partial(check.unchanged, ids)))
        for kind, records, ranges, unchanged in places:
            for portion in portions(ranges, self.pipeline.source.config.batch_limit):
                yield kind, records, portion, unchanged

    def _beside_intervals(self) -> None:
        refuse_beside_intervals(
            self.ledger, self.pipeline.name, "quarantined records that are not redriven yet stay in the quarantine"
        )

    # --- quarantined records ---------------------------------------------------------------------------------------

    def _from_quarantine(self, lease: Lease, emptying: Lease, tables: Tables) -> None:
        """Redrive quarantined records that decode and pass the row rules now; the others stay unchanged."""
        if tables.quarantine.table() is None:
            refused = sum(a.counts.quarantined for a in self.ledger.offsets.accounts(self.pipeline.name))
            if refused:
                raise ConfigError(
                    f"there is no quarantine at {tables.quarantine.path}, but the ledger has {refused:,} refused "
                    "records",
                    state="nothing was redriven",
                    next_step="set quarantine.delta.path in the pipeline file to the table that holds them",
                )
            return
        sink = tables.replacing()  # its fence refuses rivals that move the same records
        tables.quarantine.check_replaceable()
        spark = self.context.session()
        writer = self._dropper(tables) if self.action.dropping else self._writer(spark, tables)
        with self.context.watch.phase("query"):
            came = _offsets(self._chosen(spark, tables, writer))
            if not came and self.action.dropping:
                logger.info("there is no such record in the quarantine")
            elif not came:
                logger.info("no quarantined record decodes and passes the row rules of the pipeline file now")
            for window in windows(came, self.pipeline.source.config.batch_limit):
                # an interval run or a reset moves the same records: once one commits, this driver's commit is refused
                emptying.verify()
                self._beside_intervals()
                fence = Fence(sink.table_version(), lambda note: note.get("interval") is not None or emptied(note))
                records = partial(self._window, spark, tables, window)
                there = _offsets(records(writer))
                if not there:  # an earlier portion took them
                    continue
                ranges = _ranges(there)
                _RefusedBatch(
                    self.context, lease, spark, tables, tables.sink.version() + 1, ranges, writer, emptying, records,
                    there, self.action.dropping, label=f"redriving {sum(map(len, ranges)):,} records", fence=fence,
                ).execute()  # fmt: skip
        point("query-ended")

    def _window(
        self, spark: SparkSession, tables: Tables, window: Sequence[OffsetRange], writer: BatchWriter
    ) -> DataFrame:
        """Return the requested records with these offsets."""
        return self._chosen(spark, tables, writer).where(within(window))

    def _dropper(self, tables: Tables) -> BatchWriter:
        """Return a writer that commits no rows: neither the transform nor the sink's columns matter then."""
        sink, schema = tables.sink.as_it_is() or (tables.sink, SCHEMA)
        return BatchWriter(self.pipeline, self.context.run_id, lambda rows: rows, schema, sink, tables.quarantine)

    def _chosen(self, spark: SparkSession, tables: Tables, writer: BatchWriter) -> DataFrame:
        """Return the requested quarantined records: to write, those that decode and pass all row rules now, decoded."""
        raw = held_records(
            spark,
            tables.quarantine,
            of_run=self.action.of_run,
            ranges=self.action.ranges or None,
            rule=self.action.rule,
            before=self.action.before,
        )
        return raw if self.action.dropping else writer.judged(raw).where(F.col(RULE).isNull())


@dataclass
class _RedrivenBatch(BatchSteps):
    """A batch of records that have an account, which changes."""

    of: ClassVar[str]

    @property
    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """Where the records come from, as commit metadata and ledger have it."""

    def note(self) -> dict[str, Any]:
        return {"of": self.of, "source": self.origin}

    def recorded(self) -> dict[str, Any]:
        return {"redriven": Redriven(of=self.of, source=self.origin)}

    def record(self) -> None:
        super().record()
        counts = sum((a.counts for a in self.prepared.accounts), Counts()).as_dict()
        split = ", ".join(f"{n:,} {k}" for k, n in counts.items() if n and k != "planned")
        logger.info("redriven: %d ranges, %s", len(self.prepared.accounts), split or "nothing")

    def written(self, decoded: DataFrame) -> tuple[Staged, Offsets | None]:
        """Stage the rows of decoded records; return them, and of which offsets they are if rows say so."""
        writer, promised = self.writer, self.context.pipeline.rows
        staged = writer.sink.stage(writer.rows_of(decoded), self.name, offsets=False)
        point("rows-staged")
        found = writer.sink.staged_offsets(staged) if writer.traced else None
        if promised in (Rows.ONE, Rows.FILTER) and found is not None:
            records = sum(map(len, found.values()))
            if staged.rows != records:
                raise PromiseError(
                    f"the promise about rows is broken: {staged.rows} rows came from {records} records, but rows: "
                    f"{promised.value} allows one row per record",
                    state="nothing of this step is visible in the sink; the ranges stay open",
                    next_step="fix the transform, or declare what it does in the pipeline file",
                )
        return staged, found

    def rescued(self, decoded: DataFrame) -> Rescued:
        """Return which fields of the records the schema does not have."""
        return rescued_in(decoded) if self.context.pipeline.decode.rescues else NONE


@dataclass
class _LostBatch(_RedrivenBatch):
    """Lost ranges that can be read.

    Parameters
    ----------
    place
        Where the records are: ``kafka`` or ``log``.
    unchanged
        Checks that they are of the topic whose ranges were lost.
    """

    of = "lost"
    source: Records
    place: str
    unchanged: Callable[[], None]

    @property
    def origin(self) -> dict[str, Any]:
        return {"kind": self.place}

    def stage(self) -> PreparedBatch | None:
        try:
            return self._read(self.writer, self.ranges)
        except SluiceError as error:
            if not can_be_ignored(error):
                raise
            self._leave_failing(error)
            return self._read(self.writer, self.ranges) if self.ranges else None

    def _leave_failing(self, error: SluiceError) -> None:
        """Leave the records out that still fail: they stay lost."""
        writer, source = self.writer, self.source
        writer.lookups.check(self.spark)
        logger.warning("%s; searching for the records that still fail", error.what)
        still = narrow(lambda part: dies_of(writer, source, part, lambda e: source.diagnose(e, part)), self.ranges)
        for item in still:
            logger.warning("still lost: %s: %s", item.range, item.reason)
        if not still:
            raise error
        self.ranges = subtract(self.ranges, [item.range for item in still])

    def _read(self, writer: BatchWriter, ranges: Sequence[OffsetRange]) -> PreparedBatch:
        source, name = self.source, self.context.pipeline.name
        if writer.screen is not None:
            found = writer.screen.look(source, ranges)
            copies = found.as_ranges()
            rest = subtract(ranges, copies)
            prepared = self._read(replace(writer, screen=None), rest) if rest else PreparedBatch((), NOTHING)
            aside = [RangeAccount(r, Counts(filtered=len(r))) for r in copies]
            return replace(prepared, accounts=(*prepared.accounts, *aside)).having(found.fact)
        try:
            records = writer.judged(source.read(ranges))
            came = _offsets(records)
            bad = _offsets(records.where(F.col(RULE).isNotNull()))
            staged, written = self.written(records)
            if writer.opaque:
                writer.compare_metadata(staged, records)
            quarantine = writer.quarantine.stage(writer.refused(records), self.name) if bad else None
        except SluiceError:
            raise
        except Exception as error:
            writer.lookups.refuse_gone()
            raise source.diagnose(error, ranges) from error
        accounts = account_exactly(self.context.pipeline.rows, ranges, came, bad, written)
        gone = source.missing([a.range for a in accounts if a.counts.absent])
        if gone or (quarantine and quarantine.rows != sum(map(len, bad.values()))):
            raise OffsetsGoneError(
                f"pipeline {name!r}: records went away while they were redriven: {describe(gone)}",
                state="nothing of this step is visible in the sink; the ranges stay open",
                next_step="run the same command again: it redrives what is left",
                ranges=gone,
            )
        return PreparedBatch(tuple(accounts), staged, quarantine, facts=(self.rescued(records),))

    def verify(self) -> None:
        self.unchanged()
        super().verify()


@dataclass
class _RefusedBatch(_RedrivenBatch):
    """Quarantined records that decode and pass the row rules now, or that a user drops.

    Parameters
    ----------
    emptying
        The lease for taking records out of the quarantine.
    records
        Returns the records to move, with a writer's judgement.
    came
        Their offsets.
    """

    of = "quarantined"
    emptying: Lease
    records: Callable[[BatchWriter], DataFrame]
    came: Offsets
    dropping: bool

    @property
    def origin(self) -> dict[str, Any]:
        return {"kind": "dropped", "reason": self.context.reason or ""} if self.dropping else {"kind": "quarantine"}

    def stage(self) -> PreparedBatch | None:
        if not self.ranges:
            return None  # the sink refused them all
        if self.dropping:
            return PreparedBatch(tuple(RangeAccount(r, Counts(filtered=len(r))) for r in self.ranges), NOTHING)
        good = self.records(self.writer)
        staged, written = self.written(good)
        if self.writer.opaque:
            self.writer.compare_metadata(staged, good)
        accounts = account_exactly(self.context.pipeline.rows, self.ranges, self.came, {}, written)
        return PreparedBatch(tuple(accounts), staged, facts=(self.rescued(good),))

    def admit(self) -> None:
        if not self.dropping:
            super().admit()

    def verify(self) -> None:
        self.emptying.verify()
        super().verify()

    def places(self) -> Places:
        leave, run = [a.range for a in self.prepared.accounts], self.context.run_id
        return Places(refused=lambda: take_out(self.writer.quarantine, leave, self.number, run, name=self.name))

    def leave_out(self, error: RowsRefusedError) -> None:
        # such records stay in the quarantine, also if they are all that there are
        self.writer = self.writer.without(error, NOTHING)
        self.context.gate.forget()
        self.came = _offsets(self.records(self.writer))
        self.ranges = _ranges(self.came)


def refuse_beside_intervals(ledger: Ledger, pipeline: str, state: str) -> None:
    """Refuse to run beside an interval run: each decides by data that the other is about to change.

    Parameters
    ----------
    state
        What the error says about the data.

    Raises
    ------
    LeaseHeldError
        If one is at work.
    """
    others = {k: run for k, run in ledger.runs.at_work(pipeline).items() if k not in ("", REDRIVING)}
    if others:
        interval, run = next(iter(others.items()))
        raise LeaseHeldError(
            f"pipeline {pipeline!r}: run {run!r} replaces the interval {interval}",
            state=state,
            next_step="try again when it has ended",
        )


def windows(came: Offsets, offsets: int, count: int = _STRETCHES) -> Iterator[list[OffsetRange]]:
    """Yield lists of ranges that cover some offsets, each with a maximum of offsets and of gapless stretches; pure.

    The metadata of a commit names each stretch, and everyone who reads the table's history reads it. Scattered offsets
    make many stretches, so they are split into several commits.

    Parameters
    ----------
    came
        Ascending offsets per topic and partition.
    offsets, count
        Maximum number of offsets, and of stretches, in each list.
    """
    window: list[OffsetRange] = []
    room, left = offsets, count
    for (topic, partition), numbers in sorted(came.items()):
        stretch = np.concatenate(([0], np.cumsum(np.diff(numbers) != 1)))
        at = 0
        while at < len(numbers):
            end = min(at + room, int(np.searchsorted(stretch, stretch[at] + left)))
            window.append(OffsetRange(topic, partition, int(numbers[at]), int(numbers[end - 1]) + 1))
            room, left = room - (end - at), left - int(stretch[end - 1] - stretch[at] + 1)
            at = end
            if not room or not left:
                yield window
                window, room, left = [], offsets, count
    if window:
        yield window


def portions(ranges: Iterable[OffsetRange], offsets: int, count: int = _RANGES) -> Iterator[list[OffsetRange]]:
    """Yield ranges in portions of at most ``offsets`` offsets and ``count`` ranges; longer ranges are split; pure."""
    portion: list[OffsetRange] = []
    room = offsets
    for item in ranges:
        start = item.start
        while start < item.end:
            end = min(item.end, start + room)
            portion.append(OffsetRange(item.topic, item.partition, start, end))
            room -= end - start
            start = end
            if not room or len(portion) == count:
                yield portion
                portion, room = [], offsets
    if portion:
        yield portion


def _offsets(records: DataFrame) -> dict[tuple[str, int], Any]:
    """Return the offsets of a frame per topic and partition, ascending."""
    table = records.select("topic", "partition", "offset").toArrow()
    names = table.column("topic").combine_chunks().dictionary_encode()
    codes, partitions = names.indices.to_numpy(), table.column("partition").to_numpy()
    numbers = table.column("offset").to_numpy()
    found: dict[tuple[str, int], Any] = {}
    for code, topic in enumerate(names.dictionary.to_pylist()):
        of_topic = codes == code
        for partition in np.unique(partitions[of_topic]):
            found[topic, int(partition)] = np.sort(numbers[of_topic & (partitions == partition)])
    return found


def _ranges(offsets: Offsets) -> list[OffsetRange]:
    """Return the gapless ranges of some offsets."""
    return [r for (topic, n), at in sorted(offsets.items()) for r in runs_of(topic, n, at.tolist())]
