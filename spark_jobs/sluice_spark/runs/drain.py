"""What a live run does once it has a session: apply what the log holds, change over, drain Kafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

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
from sluice.ledger import Epoch, Lease
from sluice.ranges import OffsetRange, Positions
from sluice.recovery import Recovery, Route
from sluice.run.preflight import check as preflight
from sluice.sources.base import Source
from sluice.sources.kafka.cluster import TopicState
from sluice.wal import DamagedLogError
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.failures import classify
from sluice_spark.engine.logs import logger
from sluice_spark.engine.progress import Progress
from sluice_spark.runs.reconcile import HANDOVER, seal_off
from sluice_spark.runs.run import Run
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, Sink
from sluice_spark.sources.base import Records, SourceReader
from sluice_spark.sources.held import HeldRecords
from sluice_spark.sources.log import LogRecords
from sluice_spark.strategies.apply import Applier, Sealed
from sluice_spark.strategies.hot import held_twice
from sluice_spark.strategies.ignore import Ignoring
from sluice_spark.strategies.wal import Landing, landing_size

__all__ = ["Drain"]

_TROUBLE = "what the write-ahead log held was applied: {} batches; what came into Kafka since is not in the log yet"


@dataclass
class Drain:
    """The part of a live run that has a session.

    Parameters
    ----------
    states
        The topics as the broker saw them when the run was planned; empty when it did not answer.
    max_records
        About how many records a batch may have.
    ask
        Asks the broker whether it still has what is to be read; raises the typed error when not.
    unreadable
        Why the sink could not be read: then nothing is applied, even if it can be read by now, since nobody knows which
        batch would be the next.
    """

    live: Run
    lease: Lease
    spark: SparkSession
    source: Source
    states: Sequence[TopicState]
    progress: Progress
    max_records: int
    ask: Callable[[Tables], object]
    unreadable: SluiceError | None = None

    def __post_init__(self) -> None:
        self.reader: SourceReader = self.live.reader(self.spark, self.source)

    def run(self, tables: Tables, left: Sequence[Sealed], trouble: SluiceError | None, target: Epoch) -> Tables:
        """Apply what is left in the log, change over when the strategy asks for it, then drain Kafka."""
        if target.number != tables.epoch.number:
            tables = self._hand_over(tables, left, target)
            left = []
        if tables.epoch.route is Route.LOG:
            self._land(tables, left, trouble)
        elif trouble is not None:
            raise _told(trouble, "what the write-ahead log held is in the sink; the next run goes on from Kafka alone")
        else:
            self._drain(tables)
        return tables

    # --- straight ------------------------------------------------------------------------------------------------

    def _drain(self, tables: Tables) -> None:
        live, hot = self.live, self.live.recovery is Recovery.HOT
        writer = live.writer(self.spark, tables)
        sweep = tables.checkpoint.open_batch()
        entered = live.ledger.last_batch(live.pipeline.name, tables.epoch.number)

        def on_batch(records: DataFrame, batch: int) -> None:
            ranges = tables.checkpoint.ranges_of(batch)
            if entered is not None and batch <= entered.batch:
                # the driver died between the sink's commit and Spark's; reconciling entered it into the ledger
                logger.info("batch %d is in the sink already", batch)
                return
            source: Records = self.reader
            with held_twice(records) if hot else nullcontext((records, None)) as (held, short):
                if short:
                    logger.warning("strategy hot goes on as replay: %s", short)
                    live.ledger.degraded(self.lease, f"hot went on as replay: {short}")
                elif hot:
                    source = HeldRecords(held, source)
                self.process(tables, writer, batch, ranges, source, held, sweep=batch == sweep)

        self._stream(tables, on_batch, lambda: self.ask(tables), headers=hot)

    def _stream(
        self,
        tables: Tables,
        on_batch: Callable[[DataFrame, int], None],
        ask: Callable[[], object],
        *,
        headers: bool,
        max_records: int | None = None,
    ) -> None:
        """Run one bounded query over Kafka."""
        live = self.live
        failures: list[Exception] = []

        def guarded(records: DataFrame, batch: int) -> None:
            try:
                on_batch(records, batch)
            except Exception as error:
                failures.append(error)
                raise

        tables.mend_checkpoint()
        try:
            (
                self.reader.stream(
                    max_records or self.max_records,
                    start=tables.epoch.positions,
                    states=self.states,
                    headers=headers,
                    over_gaps=live.recovery.ignores,
                )
                .writeStream.foreachBatch(guarded)
                .queryName(f"sluice {live.pipeline.name}")
                .option("checkpointLocation", tables.checkpoint.path)
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )
        except Exception as error:
            raise classify(failures[0] if failures else error, ask) from error

    def process(
        self,
        tables: Tables,
        writer: BatchWriter,
        batch: int,
        ranges: Sequence[OffsetRange],
        source: Records,
        records: DataFrame | None,
        *,
        sweep: bool,
    ) -> None:
        """Take one batch through to the ledger, by the run's strategy."""
        live, name, epoch = self.live, tables.batch_name(batch), tables.epoch.number
        with live.watch.phase("ledger"):
            live.ledger.batch_started(self.lease, epoch=epoch, batch=batch, ranges=ranges)
        point("batch-started")
        self.progress.begin(batch, ranges)
        with live.watch.phase("batches"):
            prepared = self._prepare(tables, writer, name, ranges, source, records)
        with live.watch.phase("ledger"):
            self.lease.verify()
        with live.watch.phase("commits"):
            writer.commit(batch, prepared, {})
        if sweep or live.recovery.ignores:
            tables.sweep(batch)  # a driver that dies before the account is entered leaves this to the next one, too
        with live.watch.phase("ledger"):
            live.ledger.batch_committed(
                self.lease, epoch=epoch, batch=batch, accounts=prepared.accounts, lost=prepared.lost
            )
        point("batch-recorded")
        self.progress.end(batch, ranges, prepared.accounts)

    def _prepare(
        self,
        tables: Tables,
        writer: BatchWriter,
        name: str,
        ranges: Sequence[OffsetRange],
        source: Records,
        records: DataFrame | None,
    ) -> PreparedBatch:
        live = self.live

        def typed(error: Exception, reading: Sequence[OffsetRange] = ranges) -> SluiceError:
            if isinstance(source, LogRecords):
                try:
                    source.explain(reading)
                except SluiceError as found:
                    return found
                return classify(error, lambda: None)
            return classify(error, lambda: self._ask_about(tables, reading, source))

        if live.recovery.ignores:
            return Ignoring(writer, live.recovery, self.spark, typed).prepare(records, name, ranges, source)
        try:
            return writer.prepare(records if records is not None else source.read(ranges), name, ranges, source)
        except SluiceError:
            raise
        except Exception as error:
            raise typed(error) from error

    def _ask_about(self, tables: Tables, reading: Sequence[OffsetRange], source: Records) -> None:
        """Ask the broker as before a run; what an ignoring strategy has given up already is no reason any more."""
        try:
            self.ask(tables)
        except OffsetsGoneError as found:
            if self.live.recovery.ignores:
                found.ranges = tuple(source.missing(reading))
                if not found.ranges:
                    return
            raise

    # --- by way of the log ---------------------------------------------------------------------------------------

    def _applier(self, tables: Tables, left: Sequence[Sealed]) -> Applier:
        """Return what applies batches; where transform and sink do not fit, it says so when it is to be finished."""
        writer: BatchWriter | None = None
        misfit: Exception | None = self.unreadable
        try:
            writer = None if misfit else self.live.writer(self.spark, tables)
        except Exception as error:  # no reason to leave records to Kafka's retention
            misfit = error
        first = left[0].batch if left else None  # what an earlier driver may have died in

        def apply(sealed: Sealed) -> None:
            assert writer is not None
            source = LogRecords(self.spark, tables.log, sealed.segments)
            self.process(
                tables, writer, sealed.batch, sealed.ranges, source, None, sweep=sealed.batch == first
            )  # fmt: skip

        applier = Applier(apply, misfit)
        for sealed in left:
            applier.put(sealed)
        return applier

    def _land(self, tables: Tables, left: Sequence[Sealed], trouble: SluiceError | None) -> None:
        """Land what Kafka holds, and apply each batch as soon as it is sealed, beside the landing of the next."""
        live = self.live
        landing = Landing(
            live.pipeline.name, live.run, tables.log_table, self.reader, live.pipeline.wal.segment_records
        )  # fmt: skip
        recent = tables.log_table.last_notes(20)
        size = landing_size(recent, live.pipeline.wal.roll.total_seconds(), self.max_records)
        sweep = tables.checkpoint.open_batch()
        known = live.ledger.last_sealed(live.pipeline.name, tables.epoch.number)
        sealed: list[Sealed] = []

        def on_batch(records: DataFrame, batch: int) -> None:
            name = tables.landing_name(batch)
            if batch > known:
                landed = landing.stage(records, name, tables.checkpoint.ranges_of(batch))
                self.lease.verify()
                landing.seal(batch, landed)
                segments = [s.as_dict() for s in landed.segments]
                live.ledger.segment_sealed(self.lease, epoch=tables.epoch.number, batch=batch, segments=segments)
                point("seal-recorded")
                sealed.append(Sealed(batch, landed.ranges, landed.segments))
                applier.put(sealed[-1])
            if batch == sweep:
                landing.table.sweep(name)

        with self._applier(tables, left) as applier:
            if trouble is None:
                try:
                    self._stream(
                        tables,
                        on_batch,
                        lambda: self.ask(tables),
                        headers=True,
                        max_records=size,
                    )
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
            raise _told(trouble, _TROUBLE.format(applier.done))

    def _hand_over(self, tables: Tables, left: Sequence[Sealed], target: Epoch) -> Tables:
        """Close this epoch at its committed positions, and open the next one there.

        What the log holds is applied first: Kafka may no longer have it. The sink's commit decides: it takes the
        number of the batch that begins at these positions, so that a driver that still works at it cannot commit.

        Raises
        ------
        LeaseHeldError
            When one did, just now.
        """
        live = self.live
        entered = live.ledger.last_batch(live.pipeline.name, tables.epoch.number)
        reached = left[-1].batch if left else entered.batch if entered else -1
        number, positions = reached + 1, tables.position_behind(reached)
        if left:
            with self._applier(tables, left) as applier:
                try:
                    applier.finish()
                except DamagedLogError as damaged:
                    number = left[applier.done].batch
                    positions = self._position_before(positions or {}, left[applier.done :], damaged)
        sink, schema = self._to_close(tables, target)
        note: dict[str, Any] = {
            HANDOVER: {"epoch": target.number, "lineage": target.route.value, "positions": positions},
            "run": live.run,
            "pipeline": live.pipeline.name,
        }
        self.lease.verify()
        if not sink.commit(NOTHING, schema, number, note):
            raise LeaseHeldError(
                f"another driver committed batch {number} to {tables.sink.path} first",
                state="the epoch goes on; nothing was written by this driver",
                next_step="run again: the next run begins behind that batch",
            )
        point("epoch-closed")
        seal_off(tables, note)
        live.ledger.epoch_opened(self.lease, epoch=target.number, route=target.route, positions=positions)
        point("epoch-opened")
        logger.info(
            "epoch %d (%s) ended; epoch %d (%s) begins where it stopped",
            tables.epoch.number, tables.epoch.route.value, target.number, target.route.value,
        )  # fmt: skip
        return Tables.of(live.pipeline, live.home, Epoch(target.number, target.route, positions))

    def _to_close(self, tables: Tables, target: Epoch) -> tuple[Sink, StructType]:
        """Return the sink, and the columns, by which an epoch is closed.

        Where the transform no longer fits the sink, an epoch that is to land records is opened all the same: the commit
        that closes the old one has no rows, and takes the table as it is.

        Raises
        ------
        SluiceError
            When they do not fit, and the next epoch needs both, or the sink is not known to be this pipeline's.
        """
        try:
            return tables.sink, self.live.writer(self.spark, tables).schema
        except SluiceError:
            there = tables.sink.as_it_is()
            if there is None or target.route is not Route.LOG or tables.sink.version() < 0:
                raise
        return there

    def _position_before(self, behind: Positions, unapplied: Sequence[Sealed], damaged: DamagedLogError) -> Positions:
        """Return the position before these batches, if Kafka still has everything from there on.

        Parameters
        ----------
        behind
            The position after all of them.

        Raises
        ------
        DamagedLogError
            When it has not.
        """
        positions = {topic: dict(parts) for topic, parts in behind.items()}
        for item in (item for sealed in reversed(unapplied) for item in sealed.ranges):
            positions[item.topic][item.partition] = item.start  # Spark may have let go of how these were planned
        try:
            known = self.live.ledger.topic_ids(self.live.pipeline.name)
            preflight(self.live.pipeline.name, positions, self.states, known)
        except SluiceError:
            raise damaged from None
        if not self.states:
            raise damaged
        logger.warning("%s. Kafka still has these offsets: they are read from there", damaged.what)
        return positions


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


def _told(trouble: SluiceError, state: str) -> SluiceError:
    """Return the trouble, with what was achieved in spite of it."""
    kinds = (SourceUnreachableError, OffsetsGoneError, TopicRecreatedError, AuthorizationError, ConfigError)
    if isinstance(trouble, kinds):
        trouble.state = state
    return trouble
