"""The micro-batches of a live run: the bounded query that produces them, and the steps of each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sluice.errors import ExitCode
from sluice.faults import point
from sluice.ledger import Lease, LedgerError
from sluice.ledger.events import BatchStarted, Degraded, batch_committed
from sluice.recovery import Route
from sluice.sources.state import TopicState, ids_of
from sluice_spark.batch.pace import fitting
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.engine.compiling import not_compiled
from sluice_spark.engine.failures import classify
from sluice_spark.engine.logs import logger
from sluice_spark.engine.progress import Progress
from sluice_spark.engine.tasks import watched
from sluice_spark.paths import located
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.forecast import Forecast
from sluice_spark.runs.source_check import CheckedRecords, SourceCheck
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import Fence, RowsRefusedError
from sluice_spark.sources.base import SourceReader, StreamReader
from sluice_spark.strategies.base import Batch

__all__ = ["MicroBatches"]

_LARGEST = 5_000_000
"""Maximum of a batch on the Arrow path if nobody asked for another: its memory does not grow with the batch."""
_SECONDS = 30.0
"""What a batch may take then, by the pace of earlier runs: so much work is lost if the driver dies."""


@dataclass(frozen=True)
class MicroBatches:
    """What both routes do with micro-batches.

    Parameters
    ----------
    states
        The states of the topics when the run was planned; empty if the source did not answer.
    max_records
        Approximate maximum number of records in a batch, if a user asked for one.
    """

    context: RunContext
    lease: Lease
    spark: SparkSession
    reader: SourceReader
    check: SourceCheck
    states: Sequence[TopicState]
    progress: Progress
    max_records: int | None

    def records(self, tables: Tables) -> CheckedRecords:
        """Return the source's records, for reading ranges again."""
        return CheckedRecords(self.reader, self.check, tables)

    def unchanged(self) -> None:
        """Check that what was read is of the topics that the run was planned for: :meth:`SourceCheck.unchanged`."""
        self.check.unchanged(ids_of(self.states))

    def limit(self, *, arrow: bool) -> int:
        """Return the maximum number of records in a batch.

        Without a requested maximum, it is a fixed number on the Spark path, whose memory grows with the batch, and
        where the driver merges rows by their keys. On the Arrow path it is what fits into half a minute by the pace of
        the pipeline's recent runs.
        """
        merges = any(sink.kind.delta and sink.config.keyed for sink in self.context.pipeline.sinks.values())
        if self.max_records is not None or merges or not arrow:
            return self.max_records or self.context.pipeline.source.config.batch_limit
        return fitting(self.context.ledger.runs.paces(self.context.pipeline.name, limit=20), _SECONDS, _LARGEST)

    def stream(
        self,
        tables: Tables,
        on_batch: Callable[[DataFrame, int], None],
        *,
        headers: bool,
        max_records: int,
        forecast: Forecast | None = None,
        shape: Callable[[DataFrame], DataFrame] | None = None,
        output: str = "append",
        reader: StreamReader | None = None,
        executed: bool = True,
    ) -> StreamingQuery:
        """Run one bounded query over the source; return it when it has ended.

        Parameters
        ----------
        forecast
            It is told of the query.
        shape
            Makes of the stream of records what ``on_batch`` gets; by default it gets the records.
        output
            Spark's output mode.
        reader
            Reads sealed batches, instead of the source. Whether the source still has them does not matter then.
        executed
            Whether ``on_batch`` will probably execute what it gets. Spark generates code for each batch otherwise, too.

        Raises
        ------
        SluiceError
            The typed failure of ``on_batch`` or of the query.
        """
        failures: list[Exception] = []

        def guarded(records: DataFrame, batch: int) -> None:
            try:
                on_batch(records, batch)
            except Exception as error:
                failures.append(error)
                raise

        tables.mend_checkpoint()
        try:
            records = (reader or self.reader).stream(
                max_records,
                start=tables.epoch.positions,
                states=self.states,
                headers=headers or self.context.pipeline.decode.asks_headers or self._mirrored,
                over_gaps=self.context.recovery.ignores,
            )
            with nullcontext() if executed else not_compiled(self.spark):
                query = (
                    (shape(records) if shape is not None else records)
                    .writeStream.outputMode(output)
                    .foreachBatch(guarded)
                    .queryName(f"sluice {self.context.pipeline.name}")
                    .option("checkpointLocation", located(tables.checkpoint.path))
                    .trigger(availableNow=True)
                    .start()
                )
            if forecast is not None:
                forecast.query = query
            query.awaitTermination()
            return query
        except Exception as error:
            cause = failures[0] if failures else error
            ask = (lambda: self.check.states(tables)) if reader is None else (lambda: None)
            told = classify(cause, ask, (reader or self.reader).signs)
            # where it broke, which Spark's log does not say of the driver's code
            if told.exit_code is ExitCode.OTHER and not isinstance(told, LedgerError):
                logger.error("the query ended with an error", exc_info=told.__cause__ or cause)
            raise told from error

    @property
    def _mirrored(self) -> bool:
        return self.context.pipeline.origins is not None

    def process(self, tables: Tables, writer: BatchWriter, number: int, batch: Batch, *, sweep: bool) -> None:
        """Prepare one batch by the run's strategy, commit it and record it in the ledger.

        Parameters
        ----------
        sweep
            Whether an earlier driver may have left files of this batch.
        """
        ledger, watch, epoch = self.context.ledger, self.context.watch, tables.epoch.number
        # what a stateful query lets out was joined by the query, with the versions that it began with
        asked = self.context.pipeline.stateful is None
        lookups = self.context.lookups(tables, number) if asked else writer.lookups
        if lookups != writer.lookups:  # a driver died on this batch, and the tables moved on since
            logger.info("batch %d joins the versions with which it was begun: %s", number, lookups)
            writer = self.context.writer(self.spark, tables, lookups)
        with watch.phase("ledger"):
            # before any row is made of them: who repeats the batch joins the same versions
            ledger.record(
                self.lease, BatchStarted(epoch=epoch, batch=number, ranges=batch.ranges, tables=lookups.as_dict())
            )
        point("batch-started")
        self.progress.begin(number, batch.ranges)
        self.context.unknown_fields.look(batch.source, batch.ranges)
        gate = self.context.gate
        # a redrive of what another cluster had may write records whose copies are in this batch
        sink = tables.replaceable if self._mirrored else None
        fence = None if sink is None else Fence(sink.table_version(), lambda note: note.get("of") == "lost")
        while True:
            prepared = gate.given_up(writer, (epoch, number), batch.ranges)
            if prepared is None:
                with watch.phase("batches"), watched(self.spark, f"batch {number}"):
                    prepared = writer.profiled(self.context.strategy.prepare(writer, batch))
                with watch.phase("judging"):
                    gate.admit(self.lease, self.spark, writer, prepared, (epoch, number))
            if tables.further:
                with watch.phase("batches"), watched(self.spark, f"batch {number} for further sinks"):
                    prepared = writer.shared(self.spark, prepared, tables.batch_name(number))
            if self.context.pipeline.stateful is not None:
                with watch.phase("commits"):
                    tables.checkpoint.sync(number)  # or a power cut leaves rows in the sink, and not their state
            if batch.ranges and tables.epoch.route is Route.DIRECT:
                self.unchanged()
            with watch.phase("ledger"):
                self.lease.verify()
            try:
                with watch.phase("commits"):
                    writer.commit(number, prepared, {}, tables.batch_name(number), fence=fence)
            except RowsRefusedError as error:
                writer, sweep = writer.without(error, prepared.staged), True
                gate.forget()
                continue
            break
        if sweep or self.context.recovery.ignores:
            tables.sweep(number)  # before the ledger has the batch: if the driver dies, the next run sweeps it, too
        with watch.phase("ledger"):
            facts = [tables.evolved(number), *prepared.facts]
            done = batch_committed(epoch, number, prepared.accounts, lost=prepared.lost, facts=facts)
            ledger.record(self.lease, *done)
            if (found := self.context.unknown_fields.told()) is not None:
                logger.info("%s", found)
                ledger.record(self.lease, Degraded(note=found))
        point("batch-recorded")
        self.progress.end(number, batch.ranges, prepared.accounts)
