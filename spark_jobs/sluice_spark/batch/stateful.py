"""One batch of a pipeline whose state Spark keeps from run to run: what windows and ``dedupe`` have in common.

The engine passes what its stateful operator emits, not the records. So the batch's ranges are read a second time,
decoded and transformed again, and counted: what was refused, what is late, and what the operator took. Spark itself
counts parts of windows, not records. Both passes see the same records, because ranges do not change, and judge them by
the same times, because Spark keeps them with the batch's plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.errors import begin_again
from sluice.facts import Windows
from sluice.facts.rescued import NONE, Rescued
from sluice.faults import point
from sluice.kinds import imported, kind_of
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, Rows
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount, subtract
from sluice.run.checkpoint import Checkpoint, Clock
from sluice.run.rebuild_plan import Kept, former_to
from sluice_spark.batch.account import RecordCounts, account_for, doubled
from sluice_spark.batch.split import blamed
from sluice_spark.batch.tally import ReadTally
from sluice_spark.batch.writer import BatchWriter, PreparedBatch, again
from sluice_spark.columns import column
from sluice_spark.sinks.base import RowsRefusedError, Sink, Staged, Tally
from sluice_spark.sources.base import Records
from sluice_spark.windows.checks import BEFORE_1970

__all__ = ["BROKEN", "Key", "Opening", "Seen", "StatefulWriter", "by_range", "dropped", "note_of", "way_on"]

Key = tuple[str, int]
_PLACE = ("_topic", "_partition", "_offset")
BROKEN = "__sluice_broken"
"""The column with the rule that a row breaks by its keys or its event time; null if it breaks none."""


class Seen(NamedTuple):
    """What the second pass counted, per topic and partition."""

    read: Mapping[Key, int]
    bad: Mapping[Key, int]
    rows: Mapping[Key, Tally]
    late: Mapping[Key, int]
    partly: int
    latest: Mapping[Key, int] = MappingProxyType({})
    """The latest event time of any sound row, in milliseconds since 1970."""
    spans: Mapping[Key, tuple[int, int]] = MappingProxyType({})
    """The first and the last event time of any record, in milliseconds since 1970."""
    times: Sequence[Any] = ()
    rescued: Rescued = NONE
    former: Mapping[Key, int] = MappingProxyType({})

    def times_of(self, accounts: Sequence[RangeAccount]) -> list[list[Any]]:
        """Return of each range the first and the last event time."""
        nothing = (None, None)
        return [
            [*a.range.as_list(), *(self.spans.get((a.range.topic, a.range.partition)) or nothing)] for a in accounts
        ]


@dataclass(frozen=True)
class Opening:
    """An epoch as a run finds it, before it processes batches.

    Attributes
    ----------
    checkpoint
        The checkpoint of the stream that fills the sink.
    begun
        The batch that a driver died on; None if there is none, or if the epoch's state is still to be made again.
    entered
        The last batch of the epoch that the ledger has.
    """

    spark: SparkSession
    ledger: Ledger
    checkpoint: Checkpoint
    epoch: int
    begun: int | None
    entered: int | None

    @property
    def in_sink(self) -> bool:
        """Whether the sink has the batch that a driver died on, so that only its state is to be made."""
        return self.begun is not None and self.entered is not None and self.begun <= self.entered

    def former_to(self, pipeline: Pipeline) -> int | None:
        """Return up to which end the epoch does not write what it absorbs; it is decided before its first batch."""
        if self.entered is None:  # a batch that the sink does not have is made again, with its state
            rebuilt = self.epoch in self.ledger.offsets.resets(pipeline.name).rebuilt
            self.checkpoint.note_former(former_to(self.ledger, pipeline, self.epoch, rebuilt=rebuilt))
        return self.checkpoint.former_to()


@dataclass(frozen=True)
class StatefulWriter(BatchWriter, ABC):
    """Prepares and commits the batches of a pipeline with state.

    Parameters
    ----------
    clock
        The times of the batch, from the checkpoint.
    held_to
        The watermark does not pass this time less its delay, in milliseconds since 1970: the slowest partition holds
        it. None if it follows the latest record of any.
    spanned, latest
        For a batch that reads nothing, and whose state is made again: the first and the last event time of the records
        that it is made of, and the latest that earlier batches read, by topic and partition; in milliseconds since
        1970.
    """

    clock: Clock = field(default=Clock(0, 0, 0))
    held_to: int | None = None
    spanned: tuple[int, int] | None = None
    latest: Mapping[Key, int] = field(default_factory=dict)

    @property
    def traced(self) -> bool:
        """Whether what the operator emits are rows of single records, with their offsets."""
        return False

    def without(self, error: RowsRefusedError, staged: Staged) -> Self:
        """Raise the error: a row is made of many records, of this batch, whose state is not committed, or of others."""
        error.next_step = (
            "change the sink so that it takes such rows, or refuse such records from now on, by a row rule or the "
            f"transform; then run again. If the row is made of records of earlier batches, too, {way_on(self.pipeline)}"
        )
        raise error

    @property
    def output(self) -> str:
        """Spark's output mode."""
        return "append"

    def at(self, checkpoint: Checkpoint, number: int) -> Self:
        """Return the writer of a batch."""
        return replace(self, clock=checkpoint.clock_of(number))

    # --- what an operator says of itself -----------------------------------------------------------------------------

    def opened(self, opening: Opening) -> StatefulWriter:
        """Return the writer for the batches of an epoch, before the first of them is planned.

        Raises
        ------
        SluiceError
            If the operator cannot go on with what the epoch keeps. Nothing was read or written.
        """
        return self

    def rebuilt(self, needed: Kept, spanned: tuple[int, int] | None) -> Self:
        """Return the writer of the batch that makes the state of an epoch again."""
        return replace(self, spanned=spanned, latest=needed.latest)

    def remembered(self, rows: DataFrame, needed: Kept) -> tuple[DataFrame, str]:
        """Return which rows the state of an epoch is made of again, and a note for the ledger if some are gone."""
        raise NotImplementedError

    def live(self, read: int, stored: int) -> int:
        """Return how many bytes of keys and values the state has.

        Parameters
        ----------
        read
            How many bytes the last batch went through, by what Spark says of it.
        stored
            How many bytes all versions of the state have on the disk.
        """
        of = self.pipeline.stateful
        return read if of is not None and of.measures else stored

    def counted(self, spark: SparkSession, checkpoint: Checkpoint, batch: int) -> dict[str, int | None]:
        """Return how many ``keys`` and open ``windows`` the state has after a batch; it reads the whole state."""
        held = imported(kind_of("operators", str(self.pipeline.keeps)).held)
        return {"keys": held(spark, checkpoint.path, batch)[0]["keys"]}

    @property
    @abstractmethod
    def time(self) -> str:
        """The column with the event time."""

    @abstractmethod
    def emit(self, records: DataFrame) -> DataFrame:
        """Return the stream of what the operator emits, from the stream of records."""

    @abstractmethod
    def strange(self, now: Column) -> Column:
        """Return the rule that a row breaks which the operator cannot take; null where it breaks none."""

    @abstractmethod
    def late(self) -> Column:
        """Return whether the operator dropped a row because it is late."""

    def unclocked(self) -> Column:
        """Return whether Spark drops a row as late though no record set a watermark: Spark's begins at 1970."""
        return self.late() if self.clock.late == 0 else F.lit(False)

    def partly_late(self) -> Column:
        """Return whether a row is late for a part of what it belongs to."""
        return F.lit(False)

    def former(self) -> Column:
        """Return whether a row is not late, and yet belongs only to what an earlier epoch wrote."""
        return F.lit(False)

    def to_rows(self, records: DataFrame) -> DataFrame:
        """Return the rows of the table, from what :meth:`prepare` is given; it is used once, as a whole."""
        return records

    @abstractmethod
    def account(self, prepared: PreparedBatch, seen: Seen) -> PreparedBatch:
        """Return the batch with what the operator did in its accounts and in its note."""

    def partitions(self, seen: Seen) -> dict[str, Any]:
        """Return which event times the batch read, for its note: later runs tell by them which partition is behind."""
        return {"at": self.clock.now, "latest": [[*key, latest] for key, latest in sorted(seen.latest.items())]}

    # --- the steps of a batch ----------------------------------------------------------------------------------------

    def prepare(
        self,
        records: DataFrame,
        name: str,
        ranges: Sequence[OffsetRange],
        source: Records,
        lost: Sequence[LostRange] = (),
        passed: Sequence[OffsetRange] = (),
    ) -> PreparedBatch:
        """Write what the operator emitted to files and account for each offset that was read. Commits nothing.

        Parameters
        ----------
        records
            What the operator emitted, as the engine passed it. It is used once: a frame with state must be consumed, as
            a whole, or the checkpoint is of no use any more.
        ranges
            The planned ranges of the batch; none if it only closes windows or forgets keys.
        source
            Reads the records.
        lost, passed
            Parts of the ranges that are not read, as for :meth:`BatchWriter.prepare`; none in a live batch.
        """
        healthy = subtract(ranges, [*(item.range for item in lost), *passed])
        rows = self.to_rows(records).withColumn("_run", F.lit(self.run_id))
        staged = self.sink.stage(rows, name, offsets=self.traced)
        point("rows-staged")
        seen = self.count(healthy, source)
        source.verify(seen.read, healthy)
        counted, gone = RecordCounts(seen.read, seen.bad), [i.range for i in lost]
        accounts = account_for(self.pipeline.rows, ranges, counted, seen.rows, gone, passed)
        accounts = [replace(a, times=tuple(t for t in seen.times if a.range.cut(t.range))) for a in accounts]
        self.explain_gaps(accounts, healthy, source)
        quarantine: Staged | None = None
        if seen.bad:
            (refused,) = again(seen.bad, healthy, source)
            quarantine = self.stage_refused(refused, name, seen.bad)
            point("quarantine-staged")
        facts = (seen.rescued,)
        return self.account(PreparedBatch(tuple(accounts), staged, quarantine, tuple(lost), facts=facts), seen)

    def moved(self, prepared: PreparedBatch, seen: Seen, **more: Any) -> PreparedBatch:
        """Return the batch with its :class:`~sluice.facts.Windows`; late records count as filtered."""
        fact = Windows(
            rows=prepared.staged.rows,
            late=by_range(prepared, seen.late),
            partly_late=seen.partly,
            latest=max(seen.latest.values(), default=None),
            late_by=self.clock.late,
            closed_to=self.clock.closing,
            absorption=self.pipeline.absorption,
            times=seen.times_of(prepared.accounts),
            partitions=self.partitions(seen),
            former=by_range(prepared, seen.former) or None,
            **more,
        )
        accounts = dropped(dropped(prepared.accounts, seen.late), seen.former)
        return replace(prepared, accounts=tuple(accounts)).having(fact)

    def judged(self, records: DataFrame) -> DataFrame:
        """Return the decoded records, with the rule that their row breaks."""
        found = self.decoded(records)
        broken = self._told(self.transformed(found)).where(F.col(BROKEN).isNotNull())
        why = F.struct(F.col(BROKEN).alias("rule"), self.blamed(F.col(BROKEN)).alias("column"))
        first = broken.groupBy(*_PLACE).agg(F.min(why).alias(BROKEN))  # a record may have several rows
        return blamed(found, first, F.col(BROKEN)["rule"], F.col(BROKEN)["column"])

    def blamed(self, rule: Column) -> Column:
        """Return the name of the column by which a row breaks a rule."""
        return F.lit(self.time)

    def transformed(self, decoded: DataFrame) -> DataFrame:
        """Return the transform's rows, which the operator takes."""
        return super().rows_of(decoded).drop("_run")

    def sound(self, rows: DataFrame) -> DataFrame:
        """Return the rows that the operator can take."""
        return self._told(rows).where(F.col(BROKEN).isNull()).drop(BROKEN)

    def _told(self, rows: DataFrame) -> DataFrame:
        strange = self.strange(F.timestamp_millis(F.lit(self.clock.now)))
        return rows.withColumn(BROKEN, F.coalesce(strange, F.when(self.unclocked(), F.lit(BEFORE_1970))))

    def count(self, ranges: Sequence[OffsetRange], source: Records) -> Seen:
        """Return what became of the records of these ranges, judged by the writer's clock."""
        if not ranges:
            return Seen({}, {}, {}, {}, 0, self.latest)
        records = source.read(ranges)
        tally = ReadTally(self.decoded(records), ranges, rescues=self.pipeline.decode.rescues)
        rows = self._told(self.transformed(tally.frame))
        sound = F.col(BROKEN).isNull()
        time = F.unix_millis(column(self.time))
        fates = {"late": self.late(), "partly": self.partly_late(), "former": self.former()}
        judged = rows.select(
            *_PLACE, sound.alias("sound"), F.lit(1).alias("rows"), F.when(sound, time).alias("latest"),
            time.alias("from"), time.alias("to"), *((sound & fate).alias(name) for name, fate in fates.items()),
        )  # fmt: skip
        if self.pipeline.rows is Rows.MANY:
            judged = _of_records(judged)
        offset = F.when(F.col("sound"), F.col("_offset"))
        counted = judged.groupBy("_topic", "_partition").agg(
            F.count_if(~F.col("sound")).alias("broken"),
            F.coalesce(F.sum(F.when(F.col("sound"), F.col("rows"))), F.lit(0)).alias("rows"),
            # of one record at most one row, if each row has an offset of its own
            (F.count_distinct(offset) if self.pipeline.rows is Rows.FILTER or self.opaque else F.count(offset)).alias(
                "offsets"
            ),
            # a join with a table may give one record two rows, and another none
            (F.count_distinct("_offset") if self.pipeline.tables else F.count("_offset")).alias("records"),
            F.count("*").alias("every"),
            F.min(offset).alias("first"),
            F.max(offset).alias("last"),
            *(F.count_if(F.col(name)).alias(name) for name in fates),
            F.max("latest").alias("latest"),
            F.min("from").alias("from"),
            F.max("to").alias("to"),
        )
        found = {(row["_topic"], row["_partition"]): row for row in counted.collect()}
        if self.opaque:
            self.refuse_strange(rows, records)
        for (topic, partition), row in found.items():
            if self.pipeline.tables and self.pipeline.rows is not Rows.MANY and row["records"] != row["every"]:
                raise doubled(f"{topic}-{partition}", self.pipeline.rows, row["every"], row["records"])
        bad = dict(tally.bad())
        for key, row in found.items():
            if row["broken"]:
                bad[key] = bad.get(key, 0) + row["broken"]
        return Seen(
            tally.read(),
            bad,
            {k: Tally(r["rows"], r["offsets"], r["first"], r["last"]) for k, r in found.items() if r["rows"]},
            {k: r["late"] for k, r in found.items() if r["late"]},
            sum(r["partly"] for r in found.values()),
            {k: r["latest"] for k, r in found.items() if r["latest"] is not None},
            {k: (r["from"], r["to"]) for k, r in found.items() if r["from"] is not None},
            tally.times(),
            tally.rescued(),
            {k: r["former"] for k, r in found.items() if r["former"]},
        )


def _of_records(rows: DataFrame) -> DataFrame:
    """Return a row for each record, from the judged rows of records that may have several.

    A record is sound if each of its rows is, late if all are, and late in part if some are or are in part.
    """
    late, partly, gone = (
        F.bool_and("late"),
        F.bool_or(F.col("late") | F.col("partly")),
        F.bool_and(F.expr("late OR former")),
    )
    return rows.groupBy(*_PLACE).agg(
        F.bool_and("sound").alias("sound"), F.count("*").alias("rows"), F.max("latest").alias("latest"),
        F.min("from").alias("from"), F.max("to").alias("to"), late.alias("late"),
        (partly & ~gone).alias("partly"), (gone & ~late).alias("former"),
    )  # fmt: skip


def by_range(prepared: PreparedBatch, counts: Mapping[Key, int]) -> list[list[object]]:
    """Return the counts of partitions for the ranges of a batch, for its note; pure."""
    spans = [(a.range, counts.get((a.range.topic, a.range.partition), 0)) for a in prepared.accounts]
    return [[*span.as_list(), count] for span, count in spans if count]


def dropped(accounts: Sequence[RangeAccount], counts: Mapping[Key, int]) -> list[RangeAccount]:
    """Count records that the operator dropped as filtered, where they counted as written; pure."""
    found = []
    for account in accounts:
        count = counts.get((account.range.topic, account.range.partition), 0)
        found.append(replace(account, counts=account.counts + Counts(written=-count, filtered=count)))
    return found


def note_of(sink: Sink, number: int) -> dict[str, Any]:
    """Return the commit metadata of a batch; empty if the sink does not have it."""
    return next((note for note in sink.notes(newer_than=number - 1) if note["version"] == number), {})


def way_on(pipeline: Pipeline) -> str:
    """Return how to go on if the state in the checkpoint is of no use: with what it was, if that can be, or without."""
    drop = f"drop what is kept: {begin_again(pipeline.name)}"
    if pipeline.no_rebuilding is not None:
        return drop
    return f"make what is kept again, from its records: {begin_again(pipeline.name, rebuild=True)}; or {drop}"
