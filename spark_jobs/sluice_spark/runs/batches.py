"""The micro-batches of a live run: the bounded query that produces them, and the steps of each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sluice.errors import ExitCode
from sluice.ledger import Lease, LedgerError
from sluice.ledger.events import Degraded, Event
from sluice.recovery import Route
from sluice.sources.state import TopicState, ids_of
from sluice_spark.batch.batch_size import fitting
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.code_generation import not_compiled
from sluice_spark.engine.failures import classify
from sluice_spark.engine.logs import logger
from sluice_spark.engine.progress import Progress
from sluice_spark.paths import located
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.forecast import Forecast
from sluice_spark.runs.source_check import CheckedRecords, SourceCheck
from sluice_spark.runs.steps import BatchSteps
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import Fence, RowsRefusedError
from sluice_spark.sources.base import SourceReader, StreamReader
from sluice_spark.strategies.base import Batch

__all__ = ["MicroBatches", "QueryShape"]

_LARGEST = 5_000_000
"""Maximum of a batch on the Arrow path unless another is asked for: its memory does not grow with the batch."""
_SECONDS = 30.0
"""What a batch may take then, by the pace of earlier runs: so much work is lost if the driver dies."""


@dataclass(frozen=True)
class QueryShape:
    """How a query transforms the stream of records, and which function gets its batches.

    Attributes
    ----------
    on_batch
        Gets each micro-batch, with its number.
    apply
        Makes of the stream of records what ``on_batch`` gets; by default it gets the records.
    output
        Spark's output mode.
    executed
        Whether ``on_batch`` will probably execute what it gets. Spark generates code for each batch otherwise, too.
    """

    on_batch: Callable[[DataFrame, int], None]
    apply: Callable[[DataFrame], DataFrame] | None = None
    output: str = "append"
    executed: bool = True


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
        shape: QueryShape,
        *,
        max_records: int,
        headers: bool = False,
        forecast: Forecast | None = None,
        reader: StreamReader | None = None,
    ) -> StreamingQuery:
        """Run one bounded query over the source; return it when it has ended.

        Parameters
        ----------
        forecast
            It receives the query.
        reader
            Reads sealed batches, instead of the source. Whether the source still has them does not matter then.

        Raises
        ------
        SluiceError
            The typed failure of :attr:`QueryShape.on_batch` or of the query.
        """
        failures: list[Exception] = []

        def guarded(records: DataFrame, batch: int) -> None:
            try:
                shape.on_batch(records, batch)
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
            with nullcontext() if shape.executed else not_compiled(self.spark):
                query = (
                    (shape.apply(records) if shape.apply is not None else records)
                    .writeStream.outputMode(shape.output)
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
        # what a stateful query emits was joined by the query, with the versions that it began with
        asked = self.context.pipeline.stateful is None
        lookups = self.context.lookups(tables, number) if asked else writer.lookups
        if lookups != writer.lookups:  # a driver died on this batch, and the tables moved on since
            logger.info("batch %d joins the versions with which it was begun: %s", number, lookups)
            writer = self.context.writer(self.spark, tables, lookups)
        # a redrive of what another cluster had may write records whose copies are in this batch
        sink = tables.replaceable if self._mirrored else None
        fence = None if sink is None else Fence(sink.table_version(), lambda note: note.get("of") == "lost")
        steps = _LiveBatch(
            self.context, self.lease, self.spark, tables, number, batch.ranges, writer, batch, self,
            swept=sweep or self.context.recovery.ignores, label=f"batch {number}", fence=fence,
        )  # fmt: skip
        steps.execute()
        self.progress.end(number, batch.ranges, steps.prepared.accounts)


@dataclass
class _LiveBatch(BatchSteps):
    """A batch of a live run.

    Parameters
    ----------
    swept
        Whether other attempts may have left files of it.
    """

    batch: Batch
    batches: MicroBatches
    swept: bool = field(kw_only=True)
    _given_up: bool = field(default=False, init=False)

    def begin(self) -> None:
        super().begin()
        self.batches.progress.begin(self.number, self.ranges)
        self.context.unknown_fields.look(self.batch.source, self.ranges)

    def prepare(self) -> bool:
        given_up = self.context.gate.given_up(self.writer, self.awaited, self.ranges)
        self._given_up = given_up is not None
        if given_up is None:
            return super().prepare()
        self.prepared = given_up
        return True

    def stage(self) -> PreparedBatch:
        return self.context.strategy.prepare(self.writer, self.batch)

    def admit(self) -> None:
        if not self._given_up:
            super().admit()

    @property
    def awaited(self) -> tuple[int, int]:
        return self.tables.epoch.number, self.number

    def verify(self) -> None:
        if self.context.pipeline.stateful is not None:
            with self.context.watch.phase("commits"):
                self.tables.checkpoint.sync(self.number)  # or a power cut leaves rows in the sink, and not their state
        if self.ranges and self.tables.epoch.route is Route.DIRECT:
            self.batches.unchanged()
        super().verify()

    def leave_out(self, error: RowsRefusedError) -> None:
        super().leave_out(error)
        self.swept = True

    def sweep(self) -> None:
        if self.swept:
            super().sweep()

    def recorded(self) -> dict[str, Any]:
        return {"lost": self.prepared.lost}

    def events(self) -> list[Event]:
        unknown = self.context.unknown_fields.told()
        if unknown is None:
            return super().events()
        logger.info("%s", unknown)
        return [*super().events(), Degraded(note=unknown)]
