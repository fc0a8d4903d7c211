"""One batch: decode, transform, stage, check the account, commit sink and quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Self, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.errors import OffsetsGoneError
from sluice.facts import BatchFact, noted
from sluice.facts.rescued import NONE, Rescued
from sluice.faults import point
from sluice.pipeline import Pipeline, Rows
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount, Times, describe, overlaps, subtract
from sluice.run.origins import Screened
from sluice_spark.arrow.path import ArrowPath, Outcome
from sluice_spark.batch.account import ROLLED_BACK, PromiseError, RecordCounts, account_for
from sluice_spark.batch.origins import COPY, Screen, marked
from sluice_spark.batch.quarantine import SCHEMA, refused_records
from sluice_spark.batch.refusals import NONE_REFUSED, Refusals
from sluice_spark.batch.split import Split, SplitTally
from sluice_spark.batch.tally import OUTSIDE, ReadTally
from sluice_spark.columns import column
from sluice_spark.decoders.base import RULE, source_columns
from sluice_spark.engine.logs import logger
from sluice_spark.paths import literal
from sluice_spark.rules.records import decoded
from sluice_spark.sinks.also import ALSO, NO_ALSO, AlsoSinks, Shared
from sluice_spark.sinks.base import MOST, NOTHING, Fence, RowsRefusedError, Sink, Staged, overtaken
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.profile import profile_of
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sources.base import RECORD_SCHEMA, Records
from sluice_spark.transforms.lookups import NO_LOOKUPS, Lookups
from sluice_spark.transforms.transform import Transformer, apply

__all__ = ["BEHIND", "BatchWriter", "Places", "PreparedBatch", "again"]

Kind = TypeVar("Kind", bound=BatchFact)

_FEW = 20
"""If a sink refuses all rows of a batch, and they are more than this, the table is wrong, and no value."""


@dataclass(frozen=True)
class PreparedBatch:
    """Staged files that are ready to be committed, and their account."""

    accounts: tuple[RangeAccount, ...]
    staged: Staged
    quarantine: Staged | None = None
    lost: tuple[LostRange, ...] = ()
    outside: int = 0
    """The number of records outside of the interval; the accounts count them as filtered."""
    facts: tuple[BatchFact, ...] = ()
    """Other facts of the batch, at most one of each kind."""
    shared: Shared | None = None
    """Its rows, staged for further sinks, if the pipeline has any."""

    def fact(self, kind: type[Kind]) -> Kind | None:
        """Return the fact of a kind; None if it has none."""
        return next((fact for fact in self.facts if isinstance(fact, kind)), None)

    def having(self, *facts: BatchFact) -> PreparedBatch:
        """Return the batch with these facts, in place of those of the same kinds."""
        others = [fact for fact in self.facts if type(fact) not in map(type, facts)]
        return replace(self, facts=(*others, *facts))


@dataclass(frozen=True)
class Places:
    """How a batch replaces rows and refused records; by default it is appended.

    Attributes
    ----------
    rows
        Puts the staged rows into the sink under the metadata that it is given; False if this writer did so before.
    refused
        Puts the refused records into the quarantine, or takes records out of it.
    gone
        The rows that leave further sinks.
    """

    rows: Callable[[Mapping[str, Any]], bool] | None = None
    refused: Callable[[], object] | None = None
    gone: Slice | None = None


BEHIND = Places()


class _Written(NamedTuple):
    """Files that are not committed yet, and what was counted while they were written."""

    staged: Staged
    read: Mapping[tuple[str, int], int]
    bad: Mapping[tuple[str, int], int]
    outside: Mapping[tuple[str, int], int]
    times: Sequence[Times]
    rescued: Rescued = NONE
    by_spark: Sequence[tuple[Staged, DataFrame]] = ()
    """What the Spark path wrote, each with a frame that reads its records again."""
    presumed: Mapping[tuple[str, int], int] = {}
    """Those of :attr:`bad` that only have no row: by ``rows: one`` because it broke an expectation."""

    def joined(self, other: _Written) -> _Written:
        """Return both; no record may be in both."""
        return _Written(
            self.staged | other.staged,
            Counter(self.read) + Counter(other.read),
            Counter(self.bad) + Counter(other.bad),
            Counter(self.outside) + Counter(other.outside),
            [*self.times, *other.times],
            self.rescued | other.rescued,
            [*self.by_spark, *other.by_spark],
            Counter(self.presumed) + Counter(other.presumed),
        )


@dataclass(frozen=True)
class BatchWriter:
    """Prepares and commits the batches of a run.

    Parameters
    ----------
    run_id
        The run id.
    schema
        The schema of the sink's rows, including ``_run``.
    within
        The interval, as record times in milliseconds since 1970, from the first until before the second. Other records
        are read and count as filtered. None means all records.
    opaque
        Whether the transform recreates metadata columns; their values are then compared with those of the records.
    screen
        Tells copies of mirrored records; None if the pipeline has one cluster.
    screened
        Which records of the batch are copies: they are read and count as filtered.
    arrow
        Processes ranges on the Arrow path, as far as it can; None means that all records take the Spark path.
    split
        The row rules of the pipeline's suite: rows that break one go to the quarantine. None means that there are none.
    also
        The sinks of ``also``.
    lookups
        The tables that the transform joins.
    refusals
        Records whose rows the sink refused when it was given them.
    """

    pipeline: Pipeline
    run_id: str
    transform: Transformer
    schema: StructType
    sink: Sink
    quarantine: DeltaSink
    within: tuple[int, int] | None = None
    opaque: bool = False
    arrow: ArrowPath | None = None
    screen: Screen | None = None
    screened: Screened | None = None
    split: Split | None = None
    also: AlsoSinks = NO_ALSO
    lookups: Lookups = NO_LOOKUPS
    refusals: Refusals = NONE_REFUSED

    def without(self, error: RowsRefusedError, staged: Staged) -> Self:
        """Return a writer that leaves the records of refused rows out; it takes the Spark path.

        Parameters
        ----------
        staged
            The rows of the batch.

        Raises
        ------
        RowsRefusedError
            If they are not known, or if rows are not of single records; if they are too many, so that the table is at
            fault and no value.
        """
        new = error.rows.keys() - self.refusals.records.keys()
        all_of_them = _FEW < staged.rows <= len(new)
        if not new or all_of_them or len(new) > MOST or not self.traced:
            raise error
        logger.warning("%s; records that go to the quarantine for it: %d", error.what, len(new))
        point("rows-refused")
        return replace(self, arrow=None, refusals=self.refusals | error.rows)

    @property
    def traced(self) -> bool:
        """Whether each row is one of a single record, and has its offset."""
        return self.pipeline.rows is not Rows.AGGREGATE

    def prepare(
        self,
        records: DataFrame | None,
        name: str,
        ranges: Sequence[OffsetRange],
        source: Records,
        lost: Sequence[LostRange] = (),
        passed: Sequence[OffsetRange] = (),
    ) -> PreparedBatch:
        """Write the batch to files and account for each of its offsets. Commits nothing.

        Parameters
        ----------
        records
            The batch's records, without those of lost ranges; None to read from ``source`` what does not take the Arrow
            path.
        name
            The name of the batch's folders.
        ranges
            The planned ranges of the batch.
        source
            Reads the records again.
        lost
            Parts of the ranges that are skipped.
        passed
            Parts of the ranges that are not read, because none of their records is in the interval. They count as
            filtered.

        Raises
        ------
        PromiseError
            If the rows contradict the key ``rows`` of the pipeline file.
        OffsetsGoneError
            If Kafka removed records of these ranges before they were read.
        """
        healthy = subtract(ranges, [*(item.range for item in lost), *passed])
        if self.screen is not None:
            found = self.screen.look(source, healthy)
            own = replace(self, screen=None, screened=found)
            prepared = own.prepare(records, name, ranges, source, lost, passed)
            return prepared.having(found.fact)
        arrow, root = self.arrow, self.sink.staging
        done = arrow.stage(root, name, healthy, source, self.within) if arrow is not None and root is not None else None
        if done is None:
            written = self._write(source.read(healthy) if records is None else records, name, healthy)
        else:
            written = self._write_rest(done, name, healthy, source)
        point("rows-staged")
        source.verify(written.read, healthy)

        def account(bad: Mapping[tuple[str, int], int]) -> list[RangeAccount]:
            gone, tallies = [i.range for i in lost], written.staged.tallies
            counted = RecordCounts(written.read, bad, written.outside)
            return account_for(self.pipeline.rows, ranges, counted, tallies, gone, passed)

        accounts = account(written.bad)
        accounts = [replace(a, times=tuple(t for t in written.times if a.range.cut(t.range))) for a in accounts]
        self.explain_gaps(accounts, healthy if done is None else subtract(healthy, done.whole), source)
        if self.opaque:  # workers of the Arrow path have looked already
            for staged, records_of in written.by_spark:
                self.compare_metadata(staged, records_of)
        quarantine = None
        if written.bad:
            where = healthy if done is None else done.declined
            # on the Arrow path, each record is judged by itself
            whole = self.split is not None and self.split.whole and done is None
            refused = [source.read(where)] if whole else again(written.bad, where, source)
            if done is not None and done.aside:
                refused.append(self._aside(done))
            frame = reduce(DataFrame.unionByName, refused)
            try:
                quarantine = self.stage_refused(frame, name, written.bad)
            except OffsetsGoneError:
                if self.split is not None and written.presumed and not source.missing(healthy):
                    broke = self.split.count(self.rows_of(self.decoded(frame)))  # the others have lost their row
                    account(Counter(written.bad) - Counter(written.presumed) + Counter(broke))
                raise
            point("quarantine-staged")
        if done is not None:
            done.remove_aside()
        outside = sum(written.outside.values())
        return PreparedBatch(tuple(accounts), written.staged, quarantine, tuple(lost), outside, (written.rescued,))

    def _write(
        self,
        records: DataFrame,
        name: str,
        ranges: Sequence[OffsetRange],
        expected: Mapping[tuple[str, int], int] | None = None,
    ) -> _Written:
        """Write records to files on the Spark path, and count them."""
        tally = ReadTally(self.decoded(records), ranges, expected, rescues=self.pipeline.decode.rescues)
        rows, broken = self.rows_of(tally.frame), None
        presumes = self.split is not None and self.pipeline.rows is Rows.ONE
        if self.split is not None and presumes:  # who has no row broke one: nothing needs to be counted
            rows = rows.where(~self.split.breaks)
        elif self.split is not None:
            broken = SplitTally(self.split, rows, lambda: self.rows_of(self.decoded(records)), ranges)
            rows = broken.frame
        staged = self.sink.stage(rows, name, offsets=self.traced)
        read, bad, outside = tally.read(), tally.bad(), tally.outside()
        if broken is not None:
            bad = Counter(bad) + Counter(broken.counts)
        presumed: Mapping[tuple[str, int], int] = {}
        if presumes:
            there = Counter({key: found.offsets for key, found in staged.tallies.items()})
            presumed = Counter(read) - Counter(bad) - Counter(outside) - there
            bad = Counter(bad) + Counter(presumed)
        return _Written(staged, read, bad, outside, tally.times(), tally.rescued(), [(staged, records)], presumed)

    def _write_rest(self, done: Outcome, name: str, healthy: Sequence[OffsetRange], source: Records) -> _Written:
        """Put what the Arrow path wrote together with the rest, which takes the Spark path."""
        written = _Written(done.staged, done.read, {}, done.outside, done.times, done.rescued)
        if done.aside:
            ranges = [r for r in healthy if (r.topic, r.partition) in done.aside]
            rest = self._write(self._aside(done), name, ranges, done.aside)
            # their times and their number are among those of the Arrow path
            written = written.joined(rest._replace(read={}, times=[]))
        if done.declined:
            written = written.joined(self._write(source.read(done.declined), name, done.declined))
        return written

    def _aside(self, done: Outcome) -> DataFrame:
        """Return the records that the Arrow path set aside."""
        assert self.arrow is not None
        return self.arrow.spark.read.schema(RECORD_SCHEMA).parquet(*map(literal, done.aside_files))

    def decoded(self, records: DataFrame) -> DataFrame:
        """Return the decoded records. A record outside of the interval breaks no rule."""
        found = self.refusals.judged(decoded(records, self.pipeline))
        if self.screened is not None and self.screened.copies:
            return marked(found, self.screened).withColumnRenamed(COPY, OUTSIDE)
        if self.within is None:
            return found
        inside = self._inside()
        return found.withColumn(OUTSIDE, ~inside).withColumn(RULE, F.when(inside, F.col(RULE)))

    def judged(self, records: DataFrame) -> DataFrame:
        """Return the decoded records with all rules that they break, also those that only rows show."""
        return self.split_off(self.decoded(records))

    def split_off(self, decoded: DataFrame) -> DataFrame:
        """Return decoded records in which those whose row breaks an expectation have its name; see :class:`Split`."""
        return decoded if self.split is None else self.split.off(decoded, self.transform)

    def kept(self, rows: DataFrame) -> DataFrame:
        """Return the rows that break no expectation by which rows are split."""
        return rows if self.split is None else rows.where(~self.split.breaks)

    def rows_of(self, decoded: DataFrame) -> DataFrame:
        """Return the sink's rows: the transformed records that are in the interval and broke no rule."""
        inside = ~F.col(OUTSIDE) if OUTSIDE in decoded.columns else self._inside()
        good = source_columns(decoded.where(F.col(RULE).isNull() & inside))
        return apply(self.transform, good).withColumn("_run", F.lit(self.run_id))

    def _inside(self) -> Column:
        """Return the condition that a record, with Kafka's columns, is in the interval."""
        if self.within is None:
            return F.lit(True)
        start, end = (F.timestamp_millis(F.lit(time)) for time in self.within)
        return (F.col("timestamp") >= start) & (F.col("timestamp") < end)

    def compare_metadata(self, staged: Staged, records: DataFrame) -> None:
        """Check that the metadata of each staged row are those of a record of this batch.

        Parameters
        ----------
        records
            The batch's records, with Kafka's columns.

        Raises
        ------
        PromiseError
            If a row has metadata that no record has.
        """
        if staged.files:
            self.refuse_strange(self.sink.staged_rows(records.sparkSession, staged, self.schema), records)

    def refuse_strange(self, rows: DataFrame, records: DataFrame) -> None:
        """Raise :class:`PromiseError` if a row has metadata that none of the records has."""
        names = ("topic", "partition", "offset", "timestamp")
        there = records.select(*(F.col(name).alias(f"__{name}") for name in names))
        same = [F.col(f"_{name}") == F.col(f"__{name}") for name in names]
        strange = rows.select(*(f"_{n}" for n in names)).join(there, same, "left_anti").take(1)
        if strange:
            shown = ", ".join(f"_{name} {strange[0][f'_{name}']}" for name in names)
            raise PromiseError(
                f"the transform changes metadata columns: a row has {shown}, which no record of this batch has",
                state=ROLLED_BACK,
                next_step="pass _topic, _partition, _offset and _timestamp through unchanged; put another time into a "
                "column of its own",
            )

    def give_up(self, ranges: Sequence[OffsetRange], lost: Sequence[LostRange]) -> PreparedBatch:
        """Return a batch that writes nothing and counts all of its offsets as lost.

        It has no profile: a batch that was given up does not say how many rows are normal.
        """
        accounts = [RangeAccount(item, Counts(lost=len(item))) for item in ranges]
        return PreparedBatch(tuple(accounts), NOTHING, None, tuple(lost))

    def explain_gaps(self, accounts: Sequence[RangeAccount], healthy: Sequence[OffsetRange], source: Records) -> None:
        """Refuse gaps unless the broker still had the range's start after the read; only then they are ``absent``.

        Parameters
        ----------
        healthy
            The ranges that were read, without those of which that is known.
        """
        gone = source.missing(overlaps(healthy, [a.range for a in accounts if a.counts.absent]))
        if gone:
            raise OffsetsGoneError(
                f"pipeline {self.pipeline.name!r}: the source removed records while they were read: {describe(gone)}",
                state=ROLLED_BACK,
                next_step="strategy replay cannot go on without them; ignore_range or ignore_batch (not with rows: "
                "aggregate) record them as lost and go on. To avoid this, let the source keep records for longer",
                ranges=gone,
            )

    def stage_refused(self, again: DataFrame, name: str, bad: Mapping[tuple[str, int], int]) -> Staged:
        """Stage refused records verbatim, from the records of the partitions that have any, with headers."""
        staged = self.quarantine.stage(self.refused(self.judged(again)), name)
        kept = {key: t.offsets for key, t in staged.tallies.items()}
        if kept != dict(bad) or staged.rows != sum(bad.values()):
            raise OffsetsGoneError(
                f"pipeline {self.pipeline.name!r}: records to quarantine could not be read a second time: "
                f"{sum(bad.values())} were refused, {staged.rows} were found again",
                state=ROLLED_BACK,
                next_step="run again; if it happens again, let the source keep records for longer",
            )
        return staged

    def refused(self, judged: DataFrame) -> DataFrame:
        """Return the records that broke a rule, as the quarantine has them."""
        return self.refusals.told(refused_records(judged, self.run_id, self.pipeline.decode))

    def profiled(self, prepared: PreparedBatch) -> PreparedBatch:
        """Return the batch with its profile. The columns of ``quality.profiled`` are read back for it."""
        quality = self.pipeline.quality
        found = profile_of(self.sink.staging, prepared.staged, quality.measured, masked=quality.masked)
        return prepared.having(found)

    def note(self, prepared: PreparedBatch) -> dict[str, Any]:
        """Return the metadata of a batch for the sink's commit; a ledger can record the batch from it."""
        return {
            "pipeline": self.pipeline.name,
            "run": self.run_id,
            "accounts": [a.as_dict() for a in prepared.accounts],
            "lost": [item.as_dict() for item in prepared.lost],
            "refused": prepared.quarantine.folder if prepared.quarantine else None,
            **({"tables": self.lookups.as_dict()} if self.lookups.tables else {}),
            **noted(prepared.facts),
        }

    def shared(self, spark: SparkSession, prepared: PreparedBatch, name: str) -> PreparedBatch:
        """Return the batch with its rows staged for further sinks, too; ``name`` is that of its folders."""
        if not self.also:
            return prepared
        staged = prepared.staged
        rows = self.sink.staged_rows(spark, staged, self.schema).select(*map(column, self.schema.names))
        shared = self.also.share(self.sink, staged, rows, self.schema, name, offsets=self.traced)
        return replace(prepared, shared=shared)

    def commit(
        self,
        batch: int,
        prepared: PreparedBatch,
        note: Mapping[str, object],
        name: str,
        *,
        places: Places = BEHIND,
        fence: Fence | None = None,
    ) -> None:
        """Commit to the sink first, which decides, then to the quarantine, and then to further sinks.

        The sink's commit names the files that belong into the others. If the driver dies between the commits, the next
        run first commits these files (:func:`sluice_spark.runs.reconcile.reconcile`). If it dies before the sink's
        commit, no table has anything of the batch.

        Parameters
        ----------
        note
            The commit metadata of the sink's commit, beside :meth:`note`.
        name
            The name of the batch's folders.
        places
            How it replaces rows and refused records.
        fence
            Refuses the commit if a rival committed first; see :class:`Fence`.

        Raises
        ------
        LeaseHeldError
            If another driver committed this batch meanwhile.
        RowsRefusedError
            If the sink refuses rows; nothing was committed then.
        """
        if prepared.quarantine:
            # checked before the sink's commit, which would otherwise be half a batch
            self.quarantine.admit(prepared.quarantine)
        point("before-sink-commit")
        full = {**note, **self.note(prepared)}
        also = {} if prepared.shared is None else {ALSO: prepared.shared.as_dict()}
        put = places.rows or (lambda full: self.commit_rows(prepared.staged, batch, full, fence))
        if not put({**full, **also}):
            # entered since this batch began, so the rows there, and their account, are another driver's
            raise overtaken(
                f"committed batch {batch} to {self.sink.path}",
                state="the batch is in the table once; this driver's files are not part of it",
                next_step="run again: the next run records that batch in the ledger and goes on after it",
            )
        point("sink-committed")
        if places.refused is not None:
            places.refused()
        elif prepared.quarantine:
            self.quarantine.commit(prepared.quarantine, SCHEMA, batch, {"run": self.run_id})
        if places.refused is not None or prepared.quarantine:
            point("quarantine-committed")
        if prepared.shared is not None:
            self.also.commit(prepared.shared, batch, full, name, places.gone)

    def commit_rows(self, staged: Staged, batch: int, note: Mapping[str, object], fence: Fence | None) -> bool:
        """Commit staged rows to the sink; return False if this writer committed the batch before."""
        return self.sink.commit(staged, self.schema, batch, note, fence=fence)


def again(bad: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange], source: Records) -> list[DataFrame]:
    """Return the records of those ranges that may hold refused ones, with headers."""
    where = [r for r in ranges if bad.get((r.topic, r.partition))]
    return [source.read(where)] if where else []
