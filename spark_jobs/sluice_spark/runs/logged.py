"""The route by the write-ahead log: records are landed in the log, and applied to the sink from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.engine.logs import logger
from sluice_spark.runs.batches import MicroBatches
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.log import LogRecords
from sluice_spark.strategies.apply import Applier, Sealed
from sluice_spark.strategies.base import Batch
from sluice_spark.strategies.wal import Landing, landing_size

__all__ = ["LogRoute", "with_state"]

_APPLIED = "what the write-ahead log held was applied: {} batches; what came into Kafka since is not in the log yet"


@dataclass(frozen=True)
class LogRoute:
    """Lands batches in the log, and applies sealed ones to the sink.

    Parameters
    ----------
    unreadable
        Why the sink could not be read: then nothing is applied, even if it can be read by now, since nobody knows which
        batch would be the next.
    """

    batches: MicroBatches
    unreadable: SluiceError | None = None

    def applier(self, tables: Tables, left: Sequence[Sealed]) -> Applier:
        """Return what applies batches; where transform and sink do not fit, it says so when it is to be finished.

        Parameters
        ----------
        left
            Batches that are in the log and not in the sink; they are queued.
        """
        writer: BatchWriter | None = None
        misfit: Exception | None = self.unreadable
        spark = self.batches.spark
        try:
            writer = None if misfit else self.batches.context.writer(spark, tables)
        except Exception as error:  # no reason to leave records to Kafka's retention
            misfit = error
        first = left[0].batch if left else None  # what an earlier driver may have died in

        def apply(sealed: Sealed) -> None:
            assert writer is not None
            source = LogRecords(spark, tables.log, sealed.segments)
            batch = Batch(tables.batch_name(sealed.batch), sealed.ranges, source, None, spark)
            self.batches.process(tables, writer, sealed.batch, batch, sweep=sealed.batch == first)

        applier = Applier(apply, misfit)
        for sealed in left:
            applier.put(sealed)
        return applier

    def land(self, tables: Tables, left: Sequence[Sealed], trouble: SluiceError | None) -> None:
        """Land what the source holds, and apply each batch as soon as it is sealed, beside the landing of the next.

        Parameters
        ----------
        left
            Batches that are in the log and not in the sink.
        trouble
            Why the source cannot be read: then only what is left is applied.

        Raises
        ------
        SluiceError
            ``trouble``, or what landing or applying died of. What is sealed stays, and the next run applies it.
        """
        context, lease = self.batches.context, self.batches.lease
        pipeline, ledger = context.pipeline, context.ledger
        landing = Landing(
            pipeline.name, context.run_id, tables.log_table, self.batches.reader, pipeline.wal.segment_records
        )
        recent = tables.log_table.last_notes(20)
        size = landing_size(recent, pipeline.wal.roll.total_seconds(), self.batches.max_records)
        sweep = tables.checkpoint.open_batch()
        known = ledger.last_sealed(pipeline.name, tables.epoch.number)
        sealed: list[Sealed] = []

        def on_batch(records: DataFrame, number: int) -> None:
            name = tables.landing_name(number)
            if number > known:
                landed = landing.stage(records, name, tables.checkpoint.ranges_of(number))
                lease.verify()
                landing.seal(number, landed)
                segments = [s.as_dict() for s in landed.segments]
                ledger.segment_sealed(lease, epoch=tables.epoch.number, batch=number, segments=segments)
                point("seal-recorded")
                sealed.append(Sealed(number, landed.ranges, landed.segments))
                applier.put(sealed[-1])
            if number == sweep:
                landing.table.sweep(name)

        with self.applier(tables, left) as applier:
            if trouble is None:
                try:
                    self.batches.stream(tables, on_batch, headers=True, max_records=size)
                except SluiceError as error:
                    trouble = error
            failure: Exception | None = None
            try:
                applier.finish()
            except Exception as error:
                failure = error
        if failure is not None and not isinstance(trouble, LeaseHeldError):
            raise _unapplied(failure, [*left, *sealed], len(sealed), applier.done, trouble)
        if trouble is not None:
            raise with_state(trouble, _APPLIED.format(applier.done))


def _unapplied(
    failure: Exception, batches: Sequence[Sealed], landed: int, applied: int, trouble: SluiceError | None
) -> Exception:
    """Return why sealed batches could not be applied, with what the write-ahead log holds all the same."""
    if not batches:
        return failure
    new = batches[len(batches) - landed :]
    records = sum(s.records for batch in new for s in batch.segments)
    held = (
        f"{landed} batches ({records} records) were landed by this run and are sealed in the write-ahead log; "
        f"{len(batches) - applied} sealed batches wait there to be applied"
    )
    if trouble is not None:
        held += f". Landing did not get to its end: {trouble.what}"
    logger.warning("%s", held)
    if isinstance(failure, ConfigError):  # what it says of the data is true of a run that lands nothing
        failure.state = f"{held}; nothing of them is in the sink"
        failure.next_step += ". The next run applies what is sealed, and goes on"
    elif isinstance(failure, SluiceError):
        failure.state = "; ".join(filter(None, [failure.state, held]))
    return failure


def with_state(trouble: SluiceError, state: str) -> SluiceError:
    """Return the trouble with a source, with what was achieved in spite of it."""
    kinds = (SourceUnreachableError, OffsetsGoneError, TopicRecreatedError, AuthorizationError, ConfigError)
    if isinstance(trouble, kinds):
        trouble.state = state
    return trouble
