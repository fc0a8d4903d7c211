"""The batches of a pipeline whose operator has state, which Spark keeps from run to run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import CheckpointError, ConfigError, ExitCode, OffsetsGoneError, SluiceError, begin_again
from sluice.faults import point
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.pipeline.operator import operator_of
from sluice.ranges import OffsetRange, RangeAccount
from sluice.run.slowest_partition import held_by
from sluice.text import moment
from sluice_spark.batch.stateful import Opening, StatefulWriter, note_of, way_on
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.engine.cores import cores
from sluice_spark.engine.logs import logger
from sluice_spark.runs.batches import MicroBatches, QueryShape
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.rebuild import Rebuilding, due
from sluice_spark.runs.state_size import MOST, measure
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.base import Records
from sluice_spark.sources.log import LogReader
from sluice_spark.strategies.base import Batch
from sluice_spark.transforms.lookups import Lookups

__all__ = ["StatefulRoute", "define", "plan_closing", "refuse_other"]

_RAISED = re.compile(r"\[(?:\w*ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|CAST_\w+|DIVIDE_BY_ZERO)\b")
"""Conditions by which an expression fails for a value."""

_STATE = "spark.sql.streaming.stateStore."
_SHARES = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class StatefulRoute:
    """Processes what the source or the log holds: what the operator emits goes into the sink, its state into the
    checkpoint."""

    batches: MicroBatches

    def drain(self, tables: Tables, writer: BatchWriter | None = None, log: LogReader | None = None) -> None:
        """Process what the source holds now, emit what the watermark allows, then stop.

        Parameters
        ----------
        tables
            By way of the write-ahead log: those of the stream that applies it, :attr:`Tables.applying`.
        writer
            The writer of batches, if the caller has it already.
        log
            The sealed batches that are read instead of the source.

        Raises
        ------
        SluiceError
            By type. Committed batches stay, and the next run reads the open batch again.
        """
        context, spark = self.batches.context, self.batches.spark
        open_batch = tables.checkpoint.open_batch()
        # one query makes all batches: those of this run read what the batch reads that a driver died on
        lookups = _lookups(context, tables, open_batch)
        if writer is None or writer.lookups != lookups:
            writer = context.writer(spark, tables, lookups)
        assert isinstance(writer, StatefulWriter)
        _refuse_torn(context.pipeline, tables)
        rebuilding = due(context.ledger, context.pipeline, tables)
        sweep = tables.left_over()
        entered = context.ledger.offsets.last_batch(context.pipeline.name, tables.epoch.number)
        source: Records = log or self.batches.records(tables)
        found = Opening(
            spark, context.ledger, tables.checkpoint, tables.epoch.number, None if rebuilding else open_batch,
            None if entered is None else entered.batch,
        )  # fmt: skip
        writer = writer.opened(found)
        writer = _held(context.ledger, context.pipeline, tables, writer)
        if log is None:
            define(context.pipeline, tables)

        if rebuilding:
            with _settings(spark, context.pipeline):
                Rebuilding(self.batches, tables, writer).execute()
            open_batch = None  # whose state an attempt that died had not made yet
        # also that of a batch in the sink, whose rows are the same: a power cut may have emptied it, and Spark would
        # not write it again over the empty file
        if open_batch is not None and tables.checkpoint.drop_state(open_batch):
            logger.info("batch %d is read again, and the state of an earlier attempt is gone", open_batch)
            point("state-dropped")

        def on_batch(emitted: DataFrame, number: int) -> None:
            ranges = tuple(tables.checkpoint.ranges_of(number))
            if entered is not None and number <= entered.batch:
                # a driver died between the sink's commit and Spark's: what is in the sink stays, but the state must be
                # made again, and Spark makes it only for a frame that is consumed
                _refuse_other_rows(context.pipeline, tables, number)
                logger.info("batch %d is already in the sink; only its state is made again", number)
                _consume(emitted, source, ranges)
                _refuse_fewer(context.pipeline, tables, number, source, ranges)
                if log is None:
                    self.batches.unchanged()
                tables.checkpoint.sync(number)
                return
            with context.strategy.hold_emitted(
                emitted, source, self.batches.context.teller(self.batches.lease)
            ) as held:
                batch = Batch(tables.batch_name(number), ranges, held.source, held.frame, spark)
                self.batches.process(tables, writer.at(tables.checkpoint, number), number, batch, sweep=number in sweep)

        with _settings(spark, context.pipeline):
            limit = self.batches.limit(arrow=False)
            shape = QueryShape(on_batch, writer.emit, writer.output)
            try:
                query = self.batches.stream(tables, shape, max_records=limit, reader=log)
            except SluiceError as error:
                raise _of_aggregates(context.pipeline, error) from error
            with context.watch.phase("ledger"):
                measure(spark, context.ledger, self.batches.lease, writer, tables, query.recentProgress)


def _of_aggregates(pipeline: Pipeline, error: SluiceError) -> SluiceError:
    """Return the error with what to do, if an expression of the pipeline's own raised it, perhaps an aggregate."""
    of = pipeline.window or pipeline.aggregate
    if of is None or error.exit_code is not ExitCode.OTHER or _RAISED.search(error.what) is None:
        return error
    shown = ", ".join(f"{name}: {text}" for name, text in of.aggregates.items())
    return ConfigError(
        f"an expression of pipeline {pipeline.name!r} fails for a value, in the transform or in {of.key}.aggregates "
        f"({shown}): {error.what}",
        state=error.state,
        next_step="write it so that it cannot fail, such as try_sum(v), try_cast(…), try_divide(…), or "
        f"sum(CAST(v AS DECIMAL(38,0))); if it {of.holding}, then "
        f"{begin_again(pipeline.name, rebuild=pipeline.no_rebuilding is None)}; run again",
    )


def refuse_other(pipeline: Pipeline, tables: Tables) -> None:
    """Refuse to go on with a checkpoint whose state is not that of the pipeline file.

    Spark would take some changes silently and mix old windows or keys with new ones.

    Raises
    ------
    CheckpointError
        With what differs.
    """
    if not tables.checkpoint.planned():
        return
    kept, asked = tables.checkpoint.definition(), _asked(pipeline)
    if kept == asked:
        return
    known = operator_of(kept[0]) if kept is not None else None
    holding = known.holding if known is not None else f"has state of {kept and kept[0]}"
    if kept is None:
        what = f"was begun without {pipeline.kept_by}" if asked is not None else ""
    elif asked is None:
        what = f"{holding}, and the pipeline file has no {kept[0]} any more"
    elif kept[0] != asked[0]:
        what = f"{holding}, and the pipeline file has {asked[0]} instead"
    else:
        old, new = kept[1], asked[1]
        differing = ", ".join(f"{key} was {old.get(key)} and is {new[key]}" for key in new if new[key] != old.get(key))
        what = f"{holding} of another definition: {differing}"
    same = kept is not None and asked is not None and kept[0] == asked[0]
    way = way_on(pipeline) if same else f"drop what is kept: {begin_again(pipeline.name)}"
    raise CheckpointError(
        f"pipeline {pipeline.name!r}: epoch {tables.epoch.number} {what}",
        state="nothing was read or written; what is kept between runs is in the checkpoint as it was",
        next_step=f"undo the change in {pipeline.file.name}; or, for the new definition, {way}; with --truncate --from "
        "earliest all rows are written by the new definition",
    )


def _refuse_torn(pipeline: Pipeline, tables: Tables) -> None:
    """Refuse to go on from state that a power cut left empty, and that cannot be made again: it is of several batches.

    Raises
    ------
    CheckpointError
        With its versions.
    """
    if torn := tables.checkpoint.torn_state():
        raise CheckpointError(
            f"pipeline {pipeline.name!r}: version {', '.join(map(str, torn))} of the state in "
            f"{tables.checkpoint.path}/state is empty, as after a power cut",
            state="the sink holds what was committed before; nothing was written now",
            next_step=f"restore the checkpoint from a copy that is as new as the table; or {way_on(pipeline)}; with "
            "--truncate --from earliest all rows are written again",
        )


def _held(ledger: Ledger, pipeline: Pipeline, tables: Tables, writer: StatefulWriter) -> StatefulWriter:
    """Return the writer whose watermark the slowest partition holds, if the pipeline file says so."""
    of = pipeline.stateful
    if of is None or of.hold is None:
        return writer
    behind = held_by(ledger, pipeline, tables.epoch.number)
    if behind is None:
        logger.info("hold: no partition of this epoch is known yet, so the watermark stays where it is in this run")
        return replace(writer, held_to=0)
    logger.info(
        "hold: the watermark follows %s-%d, whose latest event time is %s",
        behind.topic, behind.partition, moment(behind.latest),
    )  # fmt: skip
    return replace(writer, held_to=behind.latest)


def _asked(pipeline: Pipeline) -> tuple[str, dict[str, Any]] | None:
    kept, key = pipeline.stateful, pipeline.keeps
    return None if kept is None or key is None else (key, kept.definition)


def _lookups(context: RunContext, tables: Tables, batch: int | None) -> Lookups:
    """Return the tables that the run joins: if the sink has the open batch, those that its commit names.

    Raises
    ------
    CheckpointError
        If one of these is gone, so that the state cannot be made of the rows that were accounted for.
    """
    begun = note_of(tables.sink, batch).get("tables") if context.pipeline.tables and batch is not None else None
    if not begun or batch is None or not tables.checkpoint.ranges_of(batch):
        return context.lookups(tables, batch)
    try:
        return Lookups.of(context.pipeline, context.home, begun)
    except ConfigError as gone:
        raise CheckpointError(
            f"pipeline {context.pipeline.name!r}: a driver died after it committed batch {batch}, whose state is still "
            f"to be made, and {gone.what}",
            state=f"batch {batch} is in the sink once; its state would be of other rows than its account says",
            next_step=f"restore that version from a copy, and run again; or {way_on(context.pipeline)}",
        ) from gone


def _refuse_other_rows(pipeline: Pipeline, tables: Tables, number: int) -> None:
    """Refuse to make the state of a committed batch from other rows than those that were accounted for.

    Raises
    ------
    CheckpointError
        If decoding, rules, transform or operator changed since.
    """
    note = note_of(tables.sink, number)
    absorbed = next((n["absorption"] for n in note.values() if isinstance(n, dict) and "absorption" in n), None)
    if absorbed is None or absorbed == pipeline.absorption:
        return
    raise CheckpointError(
        f"pipeline {pipeline.name!r}: a driver died after it committed batch {number}, whose state is "
        f"still to be made, and decode, rules, transform, tables or {pipeline.keeps} changed since",
        state=f"batch {number} is in the sink once; its state would be of other rows than its account says",
        next_step=f"undo the change in {pipeline.file.name} and run once; then change it",
    )


def plan_closing(tables: Tables, aim: Sequence[OffsetRange]) -> None:
    """Plan the batch that closes windows, or forgets keys, if a driver died before Spark did.

    Without it, nothing would be closed until newer records come, and their lateness would be judged by an older
    watermark than without the crash.

    Parameters
    ----------
    aim
        What the last live run had planned to read, or what the write-ahead log holds. If that is not reached, the next
        batch has records, as it would have had without the crash.
    """
    checkpoint = tables.checkpoint
    due = checkpoint.closing_due()
    if due is None:
        return
    reached = checkpoint.end_of(due - 1)
    if any(r.end > reached.get(r.topic, {}).get(r.partition, 0) for r in aim):
        return
    checkpoint.plan_closing(due)
    logger.warning("a driver died before batch %d, which closes windows, was planned: it is planned now", due)
    point("closing-planned")


def _consume(emitted: DataFrame, source: Records, ranges: Sequence[OffsetRange]) -> None:
    """Let Spark make the state of a batch, and write nothing."""
    try:
        emitted.write.format("noop").mode("overwrite").save()
    except SluiceError:
        raise
    except Exception as error:
        raise source.diagnose(error, ranges) from error


def _refuse_fewer(
    pipeline: Pipeline, tables: Tables, number: int, source: Records, ranges: Sequence[OffsetRange]
) -> None:
    """Refuse state of a committed batch that was made without records which the source removed since.

    Raises
    ------
    OffsetsGoneError
        If fewer records can be read than the batch's account has.
    """
    accounts = [RangeAccount.from_dict(each) for each in note_of(tables.sink, number).get("accounts", ())]
    due = sum(a.counts.planned - a.counts.absent - a.counts.lost for a in accounts)
    if not due:
        return
    try:
        fewer = due - source.read(ranges).count()
    except SluiceError:
        raise
    except Exception as error:
        raise source.diagnose(error, ranges) from error
    if fewer > 0:
        raise OffsetsGoneError(
            f"pipeline {pipeline.name!r}: a driver died after it committed batch {number}, whose state is still to be "
            f"made, and the source removed {fewer:,} of its records by compaction since",
            state=f"batch {number} is in the sink once; its state would lack what these records added",
            next_step=f"go on without the state: {begin_again(pipeline.name)}",
            ranges=list(ranges),
        )


def define(pipeline: Pipeline, tables: Tables) -> None:
    """Note of what the epoch will keep state, before its stream plans anything.

    By way of the write-ahead log, the first checkpoint has it: what is landed is for this state.
    """
    asked = _asked(pipeline)
    assert asked is not None
    if not tables.checkpoint.planned():
        tables.checkpoint.define(*asked)
        point("window-defined")


@contextmanager
def _settings(spark: SparkSession, pipeline: Pipeline) -> Iterator[None]:
    """Set how Spark keeps state; a query takes the session's settings when it starts.

    The number of shares is fixed by the first batch. A small state costs time for each share, so there are as many as
    cores unless the pipeline file says another number.
    """
    wanted = {
        f"{_STATE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
        # snapshots and cleaning with each batch, not once a minute: most runs are over by then
        f"{_STATE}unloadOnCommit": "true",
        f"{_STATE}rocksdb.trackTotalNumberOfRows": "false",  # it costs a read for each key put
        "spark.sql.streaming.numRecentProgressUpdates": str(MOST),
        _SHARES: pipeline.spark.conf.get(_SHARES, str(cores(spark))),
    }
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
