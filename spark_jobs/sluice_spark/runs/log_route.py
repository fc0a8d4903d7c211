"""The route by way of the write-ahead log: records are landed in the log and then applied to the sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from sluice.errors import (
    AuthorizationError,
    ConfigError,
    LeaseHeldError,
    OffsetsGoneError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
)
from sluice.faults import point
from sluice.ledger.events import SegmentSealed
from sluice.recovery import Recovery
from sluice.storage import is_url
from sluice_spark.arrow.path import ArrowCopies
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.engine.logs import logger
from sluice_spark.engine.tasks import watched
from sluice_spark.runs.batches import MicroBatches, QueryShape
from sluice_spark.runs.state_applier import StateApplier
from sluice_spark.runs.stateful_route import define
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.log import LogRecords
from sluice_spark.strategies.apply import Applier, Sealed
from sluice_spark.strategies.base import Batch
from sluice_spark.strategies.wal import Landing, landing_size

__all__ = ["LogRoute", "with_state"]

_APPLIED = "{} sealed batches of the write-ahead log were applied to the sink; newer records are not in the log yet"


@dataclass(frozen=True)
class LogRoute:
    """Lands batches in the log and applies sealed batches to the sink.

    Parameters
    ----------
    unreadable
        Why the sink could not be read when the run started. Nothing is applied then, even if the sink can be read by
        now, because it is unknown which batch is the next.
    """

    batches: MicroBatches
    unreadable: SluiceError | None = None

    def applier(self, tables: Tables, left: Sequence[Sealed]) -> Applier | StateApplier:
        """Return the applier. If transform and sink do not fit each other, its ``finish`` raises that error.

        Parameters
        ----------
        left
            Batches that are in the log but not in the sink; they are queued.
        """
        return self._applier(tables, left, self._writer(tables))

    def _writer(self, tables: Tables) -> BatchWriter | Exception:
        """Return the writer of applied batches, or why there is none."""
        if self.unreadable is not None:
            return self.unreadable
        context, spark = self.batches.context, self.batches.spark
        try:
            writer = context.writer(spark, tables)
            return replace(writer, arrow=context.arrow(spark, writer, Recovery.WAL))
        except Exception as error:  # landing goes on, because Kafka's retention does not wait
            return error

    def _copies(self, tables: Tables, writer: BatchWriter | Exception) -> ArrowCopies | None:
        """Return what lands records without Spark, if it can; it also writes rows, if that does not hold it up."""
        pipeline, spark = self.batches.context.pipeline, self.batches.spark
        if pipeline.engine != "auto":
            return None
        if isinstance(writer, Exception) or writer.arrow is None or writer.sink.staging is None:
            return ArrowCopies(spark)
        # either may take its time, while the source forgets records
        if pipeline.transform.arrow is not None or is_url(writer.sink.staging):
            return ArrowCopies(spark)
        return ArrowCopies(spark, writer.arrow, writer.sink.staging)

    def _applier(
        self, tables: Tables, left: Sequence[Sealed], writer: BatchWriter | Exception
    ) -> Applier | StateApplier:
        spark = self.batches.spark
        # an earlier driver may have died while it applied the first, or when rows of later ones were written already
        swept = {batch.batch for batch in left[:1]}
        if isinstance(writer, BatchWriter):
            swept |= tables.left_over()

        def apply(sealed: Sealed) -> None:
            assert isinstance(writer, BatchWriter)
            source = LogRecords(spark, tables.log, sealed.segments)
            batch = Batch(tables.batch_name(sealed.batch), sealed.ranges, source, None, spark)
            self.batches.process(tables, writer, sealed.batch, batch, sweep=sealed.batch in swept)

        applier: Applier | StateApplier
        if tables.applied is not None:
            applier = StateApplier(self.batches, tables, writer)
        else:
            applier = Applier(apply, writer if isinstance(writer, Exception) else None)
        for sealed in left:
            applier.put(sealed)
        return applier

    def land(self, tables: Tables, left: Sequence[Sealed], trouble: SluiceError | None) -> None:
        """Land what the source holds, and apply each sealed batch while the next ones are landed.

        With windows or ``dedupe``, sealed batches are applied when all are landed.

        Parameters
        ----------
        left
            Batches that are in the log but not in the sink.
        trouble
            Why the source cannot be read; only the batches of ``left`` are applied then.

        Raises
        ------
        SluiceError
            ``trouble``, or the failure of landing or applying. Sealed batches stay, and the next run applies them.
        """
        context, lease = self.batches.context, self.batches.lease
        pipeline, ledger = context.pipeline, context.ledger
        if pipeline.stateful is not None:
            define(pipeline, tables)
        writer = self._writer(tables)
        copies = self._copies(tables, writer)
        source = self.batches.records(tables)
        landing = Landing(pipeline.name, context.run_id, tables.log_table, source, pipeline.wal.segment_records, copies)
        arrow = copies is not None and isinstance(writer, BatchWriter) and writer.arrow is not None
        limit = self.batches.limit(arrow=arrow)
        recent = tables.log_table.last_notes(20)
        size = landing_size(recent, pipeline.wal.roll.total_seconds(), limit)
        sweep = tables.checkpoint.open_batch()
        known = ledger.offsets.last_sealed(pipeline.name, tables.epoch.number)
        sealed: list[Sealed] = []

        def on_batch(records: DataFrame, number: int) -> None:
            name = tables.landing_name(number)
            if number > known:
                ranges = tables.checkpoint.ranges_of(number)
                with watched(self.batches.spark, f"landing batch {number}"):
                    landed = landing.stage(records, name, ranges, tables.batch_name(number))
                self.batches.unchanged()
                lease.verify()
                landing.seal(number, landed)
                segments = [s.as_dict() for s in landed.segments]
                ledger.record(lease, SegmentSealed.of(tables.epoch.number, number, segments))
                point("seal-recorded")
                sealed.append(Sealed(number, landed.ranges, landed.segments))
                applier.put(sealed[-1])
            if number == sweep:
                landing.table.sweep(name)

        with self._applier(tables, left, writer) as applier:
            if trouble is None:
                try:
                    # what is left is applied meanwhile, perhaps by Spark: nothing may change its settings
                    shape = QueryShape(on_batch, executed=copies is None or bool(left))
                    self.batches.stream(tables, shape, max_records=size, headers=True)
                except SluiceError as error:
                    trouble = error
            failure: Exception | None = None
            try:
                applier.finish()
            except Exception as error:
                failure = error
        if isinstance(writer, BatchWriter) and writer.arrow is not None:
            writer.arrow.close()
        if failure is not None and not isinstance(trouble, LeaseHeldError):
            raise _unapplied(failure, [*left, *sealed], len(sealed), applier.done, trouble)
        if trouble is not None:
            raise with_state(trouble, _APPLIED.format(applier.done))


def _unapplied(
    failure: Exception, batches: Sequence[Sealed], landed: int, applied: int, trouble: SluiceError | None
) -> Exception:
    """Return the failure of applying, with the batches that the write-ahead log holds in its state."""
    if not batches and trouble is None:
        return failure
    new = batches[len(batches) - landed :]
    records = sum(s.records for batch in new for s in batch.segments)
    held = (
        f"{landed} batches ({records} records) were landed by this run and are sealed in the write-ahead log; "
        f"{len(batches) - applied} sealed batches are still to be applied"
    )
    if trouble is not None:
        held += f". Landing did not finish: {trouble.what}"
    logger.warning("%s", held)
    if isinstance(failure, ConfigError):  # its own state describes a run that landed nothing
        failure.state = f"{held}; none of them is in the sink"
        failure.next_step += ". The next run applies the sealed batches and continues"
    elif isinstance(failure, SluiceError):
        failure.state = "; ".join(filter(None, [failure.state, held]))
    return failure


def with_state(trouble: SluiceError, state: str) -> SluiceError:
    """Return the trouble with the source, with the state that this run reached."""
    kinds = (SourceUnreachableError, OffsetsGoneError, TopicRecreatedError, AuthorizationError, ConfigError)
    if isinstance(trouble, kinds):
        trouble.state = state
    return trouble
