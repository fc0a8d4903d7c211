"""The frame of every run: lease, account, verdict, and an ending that is on record."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from pyspark.sql import SparkSession

from sluice.errors import LeaseHeldError, SluiceError
from sluice.faults import point
from sluice.home import Home
from sluice.ledger import Lease, Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice.sources.base import Source
from sluice.sources.kafka.cluster import TopicState, ids_of
from sluice_spark.batch.quarantine import SCHEMA
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.engine.logs import logger
from sluice_spark.engine.stopwatch import Stopwatch
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.reconcile import examine, reconcile
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import ReadableSink, Sink
from sluice_spark.sources.base import SourceReader
from sluice_spark.transforms import transform as transforms
from sluice_spark.transforms.sample import shape_of

__all__ = ["Run"]


@dataclass
class Run(ABC):
    """One opening of the gate.

    Parameters
    ----------
    run
        The run's id. Another attempt of the same run uses the same id.
    open_session
        Makes the Spark session; called only when there is something to read.
    judge
        Judges the run after its last batch; None leaves it without a verdict.
    reason
        Why somebody asked for it; kept in the ledger.
    """

    kind: ClassVar[str]

    pipeline: Pipeline
    run: str
    ledger: Ledger
    home: Home
    open_session: Callable[[], SparkSession]
    recovery: Recovery
    judge: Judge | None
    reason: str | None = field(default=None, kw_only=True)
    watch: Stopwatch = field(default_factory=Stopwatch, kw_only=True)
    _planned: bool = field(default=False, init=False)
    _found: list[str] = field(default_factory=list, init=False)
    _open: ExitStack = field(default_factory=ExitStack, init=False)

    @property
    def scope(self) -> str:
        """What only one driver may do at a time; see :class:`~sluice.ledger.Lease`."""
        return ""

    def execute(self) -> dict[str, Any]:
        """Run it; return its account.

        Raises
        ------
        SluiceError
            By type, after the run was closed as ``failed`` in the ledger.
        """
        began = time.monotonic()
        name = self.pipeline.name
        with self._open, self.ledger.acquire(name, self.run, scope=self.scope) as lease:
            try:
                verdict = self._drive(lease)
            except LeaseHeldError:
                raise  # fenced: whoever took over writes the ledger now
            except SluiceError as error:
                self._close_failed(lease, error, time.monotonic() - began)
                raise
            except Exception as error:
                unknown = SluiceError(
                    f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:800],
                    state="batches that were committed are in the sink; the open batch is read again by the next run",
                    next_step="read the traceback above; run again when the cause is fixed",
                )
                self._close_failed(lease, unknown, time.monotonic() - began)
                raise
            self.ledger.run_closed(lease, state="done", seconds=round(time.monotonic() - began, 3), verdict=verdict)
        logger.info("seconds: %s (query holds ledger, batches and commits)", self.watch)
        return self.ledger.account(name, self.run)

    @abstractmethod
    def _drive(self, lease: Lease) -> str | None:
        """Do the work; return the verdict."""

    # --- what every kind of run does -------------------------------------------------------------------------------

    def opened_source(self) -> Source:
        """Return the source, which is closed when the run ends."""
        source = self.pipeline.source
        return self._open.enter_context(source.kind.opened(source.config))

    def reader(self, spark: SparkSession, source: Source) -> SourceReader:
        """Return the Spark half of the source."""
        reader: SourceReader = self.pipeline.source.kind.read_with(spark, self.pipeline.source.config, source)
        return reader

    def _reconciled(self, lease: Lease) -> Tables:
        """Return the tables of the present epoch, after the ledger was brought up to them."""
        redriven = Tables.redriven(self.pipeline, self.home)
        while True:
            tables = Tables.of(self.pipeline, self.home, self.ledger.epoch(self.pipeline.name))
            self._examine(tables)
            reconcile(self.ledger, lease, tables, redriven, forgo=self.recovery.ignores)
            if self.ledger.epoch(self.pipeline.name) == tables.epoch:
                return tables

    def _examine(self, tables: Tables) -> None:
        """Look at what others did to the tables; what concerns rows is entered into the ledger with the plan."""
        for found in examine(tables):
            if found not in self._found:
                logger.warning("%s", found)
                self._found.append(found)

    def _plan(
        self, lease: Lease, ranges: Sequence[OffsetRange], states: Sequence[TopicState], *, epoch: int, **more: Any
    ) -> None:
        known = self.ledger.topic_ids(self.pipeline.name)
        self.ledger.run_planned(
            lease,
            kind=self.kind,
            recovery=self.recovery.value,
            epoch=epoch,
            ranges=ranges,
            topic_ids=ids_of(states) | known,  # a topic that was recreated is another one
            reason=self.reason,
            **more,
        )
        self._planned = True
        for found in self._found:
            self.ledger.degraded(lease, found)
        point("run-planned")
        logger.info("run %s of %s: %d offsets to read", self.run, self.pipeline.name, sum(map(len, ranges)))

    def _session(self) -> SparkSession:
        if self.judge is not None:
            self.judge.warm_up()  # from here on this process mostly waits for the JVM
        with self.watch.phase("session"):
            spark = self.open_session()
        point("session-started")
        return spark

    def writer(self, spark: SparkSession, tables: Tables) -> BatchWriter:
        """Return the writer of these tables' batches, after checking that transform and tables fit each other.

        Raises
        ------
        ConfigError
            When they do not.
        """
        with self.watch.phase("planning"):
            transform = transforms.transformer(self.pipeline)
            shape = shape_of(spark, self.pipeline, transform)
            if self.judge is not None:
                self.judge.check()
                self.judge.check_columns(shape.schema.names)
            tables.sink.check(shape.schema)
            tables.quarantine.check(SCHEMA)
        return BatchWriter(
            self.pipeline, self.run, transform, shape.schema, tables.sink, tables.quarantine, opaque=shape.opaque
        )  # fmt: skip

    def _judge(self, lease: Lease, sink: Sink) -> str | None:
        name = self.pipeline.name
        with self.watch.phase("judging"):
            runs = self._to_judge()
            if not any(self.ledger.accounts(name, run) for run in runs):
                self.ledger.judged(lease, name, self.run, verdict="empty", judgement={})
                logger.info("nothing new: verdict empty")
                return "empty"
            if self.judge is None:
                return None
            judgement = self.judge.settle(self.ledger, self.open_session, cast(ReadableSink, sink), runs)
            for run in runs:
                self.ledger.judged(lease, name, run, verdict=judgement.verdict, judgement=judgement.as_dict())
            point("judged")
            return judgement.verdict

    def _to_judge(self) -> list[str]:
        # rows of a run that died before it was judged are judged with this one
        return [*self.ledger.unjudged(self.pipeline.name), self.run]

    def _close_failed(self, lease: Lease, error: SluiceError, seconds: float) -> None:
        report = {
            "type": type(error).__name__, "exit_code": int(error.exit_code), "what": error.what, "state": error.state,
            "next": error.next_step,
        }  # fmt: skip
        try:
            if not self._planned:
                self._plan(lease, [], [], epoch=self.ledger.epoch(self.pipeline.name).number)
            self.ledger.run_closed(lease, state="failed", seconds=round(seconds, 3), error=report)
        except SluiceError as second:
            logger.warning("the failure could not be entered into the ledger: %s", second.what)
