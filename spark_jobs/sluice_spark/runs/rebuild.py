"""Makes the state of an epoch again that a reset opened to go on: of the records that the epochs before it read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.errors import OffsetsGoneError, SluiceError, begin_again
from sluice.faults import point
from sluice.ledger import Ledger
from sluice.ledger.events import Degraded
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange, Positions, describe, subtract
from sluice.run.checkpoint import Checkpoint, Clock
from sluice.run.interval import ALWAYS
from sluice.run.rebuild_plan import Kept, kept
from sluice.run.reset_plan import possible
from sluice.run.resolve import Available
from sluice.run.transfer import Transfer
from sluice.sources.base import Source
from sluice.sources.state import TopicState
from sluice_spark.batch.stateful import StatefulWriter
from sluice_spark.columns import column
from sluice_spark.engine.failures import Sign
from sluice_spark.engine.logs import logger
from sluice_spark.paths import literal, located
from sluice_spark.runs.batches import MicroBatches, QueryShape
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.interval_offsets import IntervalOffsets
from sluice_spark.runs.source_check import SourceCheck
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sources.base import RECORD_SCHEMA
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.strategies.base import Batch

__all__ = ["Rebuilding", "due", "readable"]

_PLACE = ("topic", "partition", "offset")


def due(ledger: Ledger, pipeline: Pipeline, tables: Tables) -> bool:
    """Return whether the state of this epoch is still to be made again."""
    if pipeline.stateful is None or Transfer(tables.applying.checkpoint.path).done():
        return False
    return tables.epoch.number in ledger.offsets.resets(pipeline.name).rebuilt


def readable(context: RunContext, source: Source, epoch: int) -> tuple[Kept, Available]:
    """Return of which records the state of an epoch is made, after checking that they can still be read.

    Raises
    ------
    OffsetsGoneError
        If some are in neither the source nor the write-ahead log.
    """
    name = context.pipeline.name
    needed = kept(context.ledger, context.pipeline, epoch)
    _, available = IntervalOffsets(context, ALWAYS).available(source)
    gone = available.gaps(needed.ranges)
    gone += [cut for span in subtract(needed.ranges, gone) for cut in source.missing(span)]
    empty = [a.range for a in context.ledger.offsets.accounts(name) if a.counts.absent == len(a.range)]
    if gone := subtract(gone, empty):
        if available.trouble is not None:
            raise available.trouble
        raise _gone(name, gone)
    return needed, available


@dataclass(frozen=True)
class Rebuilding:
    """Makes the state of a pipeline's windows, or of its ``dedupe``, and gives it to the epoch's checkpoint.

    Parameters
    ----------
    tables
        Those of the stream that fills the sink.
    writer
        Its writer of batches.

    Notes
    -----
    The records are stored beside the checkpoint. A bounded query with the same operator reads them at once, so none of
    them is late. It writes what its first batch emits: with ``output: update`` the windows that are open. The
    account stays as it is: these records have theirs. Killed at any instruction, the next run begins it again.
    """

    batches: MicroBatches
    tables: Tables
    writer: StatefulWriter

    def execute(self) -> None:
        """Make the state.

        Raises
        ------
        OffsetsGoneError
            If records that it needs are gone. Nothing was written.
        SluiceError
            By type.
        """
        context, lease, number = self.batches.context, self.batches.lease, self.tables.epoch.number
        possible(context.pipeline, None, truncate=False, rebuild=True)
        transfer = Transfer(self.tables.checkpoint.path, lease.token)
        needed, available = readable(context, self.batches.check.source, number)
        lease.verify()
        transfer.clear()
        self._gather(transfer, needed, available)
        point("records-gathered")
        records, spanned = self._told(transfer)
        note = f"the state of epoch {number} is made again, of {records:,} records that earlier runs read"
        context.ledger.record(lease, Degraded(note=note))
        self._make(transfer, self.writer.rebuilt(needed, spanned))
        lease.verify()
        transfer.take(needed.watermark)
        point("state-rebuilt")
        logger.info("%s", note)

    # --- the records -------------------------------------------------------------------------------------------------

    def _gather(self, transfer: Transfer, needed: Kept, available: Available) -> None:
        """Store the records beside the checkpoint; a file without any, if it needs none."""
        spark, context, ranges = self.batches.spark, self.batches.context, needed.ranges
        if not ranges:
            spark.createDataFrame([], RECORD_SCHEMA).write.parquet(located(transfer.records))
            return
        offsets = IntervalOffsets(context, ALWAYS)
        source = offsets.source(spark, available, *available.split(ranges))
        try:
            records = source.read(ranges)
            self._compare(source, needed)
            wanted = self._wanted(records, needed)
            chosen = wanted.select(*(F.col(f"_{name}").alias(name) for name in _PLACE)).distinct()
            records.join(chosen, list(_PLACE), "left_semi").write.parquet(located(transfer.records))
        except SluiceError:
            raise
        except Exception as error:
            self.writer.lookups.refuse_gone()
            raise source.diagnose(error, ranges) from error
        if gone := source.missing(ranges):  # removed while they were read
            raise _gone(context.pipeline.name, gone)
        known, (kafka, _, _) = context.ledger.runs.topic_ids(context.pipeline.name), available.split(ranges)
        check = SourceCheck(context, available.source)
        check.unchanged({r.topic: known[r.topic] for r in kafka if r.topic in known})

    def _compare(self, source: RecordsInParts, needed: Kept) -> None:
        """Refuse to go on without records that compaction removed; tell of those that the file refuses now."""
        context, name = self.batches.context, self.batches.context.pipeline.name
        judging = replace(self.writer, clock=Clock(0, 0, round(time.time() * 1000)))
        seen = judging.count(needed.ranges, source)
        if (fewer := needed.records - sum(seen.read.values())) > 0:
            raise OffsetsGoneError(
                f"pipeline {name!r}: the source removed {fewer:,} records by compaction since they were read, and its "
                "state would lack what they added",
                next_step=f"go on without the state: {begin_again(name)}",
                ranges=list(needed.ranges),
            )
        held = self.tables.quarantine.held(Slice(list(needed.ranges)))
        newly = sum(seen.bad.values()) - sum(map(len, held.values()))
        if newly > 0:
            note = (
                f"{newly:,} records of the batches that were read again are refused by the pipeline file of now, and "
                "were not before: what is open is without them, and their account stays as it was"
            )
            logger.warning("%s", note)
            context.ledger.record(self.batches.lease, Degraded(note=note))

    def _wanted(self, records: DataFrame, needed: Kept) -> DataFrame:
        """Return the rows whose records the state is made of, with their places."""
        writer = replace(self.writer, clock=Clock(0, 0, round(time.time() * 1000)))
        wanted, note = writer.remembered(writer.sound(writer.transformed(writer.decoded(records))), needed)
        if note:
            logger.warning("%s", note)
            self.batches.context.ledger.record(self.batches.lease, Degraded(note=note))
        return wanted

    def _told(self, transfer: Transfer) -> tuple[int, tuple[int, int] | None]:
        """Return how many records are stored, and their first and last event time, in milliseconds since 1970."""
        writer = self.writer
        rows = writer.transformed(writer.decoded(self.batches.spark.read.parquet(literal(transfer.records))))
        times = F.unix_millis(column(writer.time))
        found = rows.agg(F.count_distinct("_topic", "_partition", "_offset"), F.min(times), F.max(times)).first()
        assert found is not None
        return found[0], None if found[1] is None else (found[1], found[2])

    # --- the state ---------------------------------------------------------------------------------------------------

    def _make(self, transfer: Transfer, writer: StatefulWriter) -> None:
        context, tables, spark = self.batches.context, self.tables, self.batches.spark
        known = context.ledger.offsets.last_batch(context.pipeline.name, tables.epoch.number)
        positions = tables.epoch.positions
        assert positions is not None

        def on_batch(emitted: DataFrame, number: int) -> None:
            self.batches.lease.verify()
            transfer.plan(positions)
            if known is not None or writer.traced:  # rows of single records: the sink has them
                emitted.write.format("noop").mode("overwrite").save()
            if known is not None:
                return
            if writer.traced:
                emitted = spark.createDataFrame([], emitted.schema)
            source = self.batches.records(tables)
            with context.strategy.hold_emitted(
                emitted, source, self.batches.context.teller(self.batches.lease)
            ) as held:
                batch = Batch(tables.batch_name(number), (), held.source, held.frame, spark)
                own = writer.at(tables.checkpoint, number)
                self.batches.process(tables, own, number, batch, sweep=number in tables.left_over())

        schema = spark.read.parquet(literal(transfer.records)).schema
        key = "spark.sql.streaming.noDataMicroBatches.enabled"
        before = spark.conf.get(key)
        spark.conf.set(key, "false")  # the next batch emits what was closed since, of the epoch's own stream
        try:
            self.batches.stream(
                replace(tables, checkpoint=Checkpoint(transfer.beside)),
                QueryShape(on_batch, writer.emit, writer.output),
                max_records=1,
                reader=_Stored(spark, transfer.records, schema),
            )
        finally:
            spark.conf.set(key, str(before))


@dataclass(frozen=True)
class _Stored:
    """Streams stored records, all of them as one batch."""

    spark: SparkSession
    path: str
    schema: StructType
    signs: Sequence[Sign] = ()

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        return self.spark.readStream.schema(self.schema).parquet(literal(self.path))


def _gone(pipeline: str, gone: Sequence[OffsetRange]) -> OffsetsGoneError:
    return OffsetsGoneError(
        f"pipeline {pipeline!r}: records of which the state is to be made again are no longer in the source or the "
        f"write-ahead log: {describe(gone)}",
        next_step=f"go on without the state: {begin_again(pipeline)}",
        ranges=list(gone),
    )
