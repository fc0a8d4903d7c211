"""One batch: decode, transform, stage, check the account, commit sink and quarantine. Strategy ``replay``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.errors import ConfigError, LeaseHeldError, OffsetsGoneError
from sluice.faults import point
from sluice.kafka import Cluster, KafkaSettings
from sluice.kafka.cluster import starts
from sluice.ranges import Counts, OffsetRange, RangeAccount, describe
from sluice.spec import Pipeline, Rows
from sluice_spark.decode import RULE, decode, source_columns
from sluice_spark.quarantine import SCHEMA, refused_records
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sinks.staged import Staged, Tally
from sluice_spark.sources.kafka import read_ranges
from sluice_spark.tally import ReadTally
from sluice_spark.transform import Transformer

__all__ = ["BatchWriter", "PreparedBatch", "PromiseError"]

_ROLLED_BACK = "nothing of this batch is visible in the sink; the position stays before it"


class PromiseError(ConfigError):
    """The transform did not keep what the pipeline file promises about rows."""


@dataclass(frozen=True)
class PreparedBatch:
    """Files that are ready to be committed, and the account that goes with them."""

    accounts: tuple[RangeAccount, ...]
    rows: DataFrame
    staged: Staged
    quarantine: Staged | None


@dataclass(frozen=True)
class BatchWriter:
    """What every batch of a run has in common."""

    pipeline: Pipeline
    run: str
    settings: KafkaSettings
    cluster: Cluster
    transform: Transformer
    sink: DeltaSink
    quarantine: DeltaSink

    def prepare(self, records: DataFrame, name: str, ranges: Sequence[OffsetRange]) -> PreparedBatch:
        """Write the batch to files and account for each of its offsets. Commits nothing.

        Parameters
        ----------
        records
            The batch as Spark's Kafka source gives it.
        name
            Names the batch's folder.
        ranges
            What the batch was planned with.

        Raises
        ------
        PromiseError
            When rows do not add up as the pipeline file promises.
        OffsetsGoneError
            When Kafka dropped records of these ranges before they were read.
        """
        tally = ReadTally(decode(records, self.pipeline.decode), ranges)
        good = source_columns(tally.frame.where(F.col(RULE).isNull()))
        rows = self.transform(good).withColumn("_run", F.lit(self.run))
        staged = self.sink.stage(rows, name, offsets=self.pipeline.rows is not Rows.AGGREGATE)
        point("rows-staged")
        read, bad = tally.read(), tally.bad()
        accounts = account_for(self.pipeline.rows, ranges, read, bad, staged.tallies)
        self._explain_gaps(accounts)
        quarantine = None
        if bad:
            quarantine = self._stage_refused(records, name, ranges, bad)
            point("quarantine-staged")
        return PreparedBatch(tuple(accounts), rows, staged, quarantine)

    def _explain_gaps(self, accounts: Sequence[RangeAccount]) -> None:
        """Offsets without a record are ``absent`` only if the broker still had the range's start after the read."""
        gaps = [a.range for a in accounts if a.counts.absent]
        if not gaps:
            return
        logs = starts(self.cluster.snapshot({r.topic for r in gaps}))
        gone = [
            OffsetRange(r.topic, r.partition, r.start, min(r.end, logs[r.topic][r.partition]))
            for r in gaps
            if logs[r.topic].get(r.partition, r.end) > r.start
        ]
        if gone:
            raise OffsetsGoneError(
                f"pipeline {self.pipeline.name!r}: Kafka dropped records while they were being read: {describe(gone)}",
                state=_ROLLED_BACK,
                next_step="strategy replay cannot go on without them; raise the topic's retention for the next time",
            )

    def _stage_refused(
        self, records: DataFrame, name: str, ranges: Sequence[OffsetRange], bad: Mapping[tuple[str, int], int]
    ) -> Staged:
        # Only now, and only where something broke: the raw records once more, verbatim, with their headers.
        where = [r for r in ranges if bad.get((r.topic, r.partition))]
        again = read_ranges(records.sparkSession, self.settings, self.pipeline.kafka, where)
        staged = self.quarantine.stage(refused_records(decode(again, self.pipeline.decode), self.run), name)
        kept = {key: t.offsets for key, t in staged.tallies.items()}
        if kept != dict(bad) or staged.rows != sum(bad.values()):
            raise OffsetsGoneError(
                f"pipeline {self.pipeline.name!r}: records to quarantine could not be read a second time: "
                f"{sum(bad.values())} were refused, {staged.rows} were found again",
                state=_ROLLED_BACK,
                next_step="run again; if it stays, raise the topic's retention",
            )
        return staged

    def commit(self, batch: int, prepared: PreparedBatch, note: Mapping[str, object]) -> None:
        """Commit the sink first, which decides, and the quarantine second.

        The sink's commit names the files that belong into the quarantine. When the driver dies between the two, the
        next run enters them (:func:`sluice_spark.reconcile.reconcile`) before it does anything else; an attempt whose
        sink commit never happened leaves nothing in either table.

        Raises
        ------
        LeaseHeldError
            When another driver committed this batch in the meantime.
        """
        point("before-sink-commit")
        refused = prepared.quarantine.folder if prepared.quarantine else None
        if not self.sink.commit(prepared.staged, prepared.rows.schema, batch, {**note, "refused": refused}):
            # entered since this batch began, so the rows there, and their account, are another driver's
            raise LeaseHeldError(
                f"another driver committed batch {batch} to {self.sink.path} first",
                state="the batch is in the table once; this driver's files are not part of it",
                next_step="run again: the next run enters that batch into the ledger and goes on behind it",
            )
        point("sink-committed")
        if prepared.quarantine:
            self.quarantine.commit(prepared.quarantine, SCHEMA, batch, note)
            point("quarantine-committed")

    def sweep(self, name: str, batch: int) -> None:
        """Remove the files of attempts at a committed batch that died.

        Nothing is removed before the sink holds the batch: until then a driver that was fenced between its last look
        at the lease and its commit may still enter its files, and they must be there.
        """
        if self.sink.version() >= batch:
            self.sink.sweep(name)
            self.quarantine.sweep(name)


def account_for(
    rows: Rows,
    ranges: Sequence[OffsetRange],
    read: Mapping[tuple[str, int], int],
    bad: Mapping[tuple[str, int], int],
    written: Mapping[tuple[str, int], Tally],
) -> list[RangeAccount]:
    """Split each planned range by what was counted; pure.

    Parameters
    ----------
    read, bad
        Records read, and of these refused, per topic and partition.
    written
        What is in the staged files.

    Raises
    ------
    PromiseError
        When more went out than came in, an offset stands twice where it must not, or one is of no planned range.
    """
    planned = {(r.topic, r.partition): r for r in ranges}
    strangers = sorted(set(written) - set(planned)) or [
        key for key, t in written.items() if t.first < planned[key].start or t.last >= planned[key].end
    ]
    if strangers:
        raise _broken(f"rows carry offsets of {strangers[0][0]}-{strangers[0][1]} that this batch did not read")
    accounts = []
    for key, span in planned.items():
        came, refused = read.get(key, 0), bad.get(key, 0)
        good = came - refused
        out = written.get(key, Tally(0, 0, 0, 0))
        if came > len(span):
            raise _broken(f"{came} records were read of {span}, which has {len(span)} offsets")
        if rows in (Rows.ONE, Rows.FILTER) and out.rows != out.offsets:
            raise _broken(
                f"{span}: {good} records went into the transform and {out.rows} rows of {out.offsets} records came "
                f"out, where rows: {rows.value} allows one row per record",
            )
        if out.offsets > good:
            raise _broken(f"{span}: {good} records went into the transform, rows of {out.offsets} came out")
        if rows is Rows.ONE and out.rows != good:
            raise _broken(
                f"{span}: {good} records went into the transform and {out.rows} rows came out, where rows: one "
                "promises one row per record"
            )
        kept = good if rows is Rows.AGGREGATE else out.offsets
        counts = Counts(written=kept, filtered=good - kept, quarantined=refused, absent=len(span) - came)
        accounts.append(RangeAccount(span, counts))
    return accounts


def _broken(what: str) -> PromiseError:
    return PromiseError(
        f"the promise about rows is broken: {what}",
        state=_ROLLED_BACK,
        next_step="mend the transform, or declare what it does: rows: filter, many or aggregate in the pipeline file",
    )
