"""What all parts of a run share: the request, and access to ledger, tables, source and Spark."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from pyspark.sql import SparkSession

from sluice.decoders.registry import ask
from sluice.faults import point
from sluice.home import Home
from sluice.kinds import imported, kind_of
from sluice.ledger import Epoch, Lease, Ledger
from sluice.ledger.events import Degraded
from sluice.pipeline import Pipeline
from sluice.recovery import Recovery
from sluice.run.origins import settled_of
from sluice.sources.base import Source, SourceConfig
from sluice.storage import is_url
from sluice_spark.arrow.path import ArrowPath
from sluice_spark.arrow.plan import NotArrowError, plan_of, sketch
from sluice_spark.arrow.shares import in_workers, warm_up
from sluice_spark.batch.origins import Screen
from sluice_spark.batch.quarantine import SCHEMA
from sluice_spark.batch.results import ResultWriter
from sluice_spark.batch.split import Split
from sluice_spark.batch.unknown_fields import UnknownFields
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.engine.logs import logger
from sluice_spark.engine.stopwatch import Stopwatch
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.gate import Gate
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.base import SourceReader
from sluice_spark.strategies.base import Strategy
from sluice_spark.strategies.by_name import STRATEGIES
from sluice_spark.transforms import transform as transforms
from sluice_spark.transforms.lookups import NO_LOOKUPS, Lookups
from sluice_spark.transforms.sample import shape_of

__all__ = ["RunContext"]
"""By key of the pipeline file that keeps state."""


@dataclass(frozen=True)
class RunContext:
    """The context of one run.

    Parameters
    ----------
    run_id
        The run's id. Another attempt of the same run uses the same id.
    open_session
        Creates the Spark session; called only if there is something to read or to validate.
    judge
        Validates the run after its last batch; None leaves the run without a verdict.
    reason
        The user's reason for the run, recorded in the ledger.
    resources
        Resources that are closed when the run ends.
    """

    pipeline: Pipeline
    run_id: str
    ledger: Ledger
    home: Home
    open_session: Callable[[], SparkSession]
    recovery: Recovery
    judge: Judge | None
    reason: str | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)
    resources: ExitStack = field(default_factory=ExitStack)
    paths: list[ArrowPath | None] = field(default_factory=list)
    """What writers of this run took; None stands for the Spark path."""

    @cached_property
    def unknown_fields(self) -> UnknownFields:
        """The look at fields that the schema does not have."""
        return UnknownFields(self.pipeline)

    @property
    def engine(self) -> str | None:
        """What processed the records, as :class:`~sluice.ledger.events.RunClosed` has it."""
        if any(path is None or not path.works for path in self.paths):
            return "spark"
        return "arrow" if any(path is not None and path.used for path in self.paths) else None

    @property
    def strategy(self) -> Strategy:
        """The strategy of the run."""
        return STRATEGIES[self.recovery]

    def teller(self, lease: Lease) -> Callable[[str], None]:
        """Return what tells, once for each reason, that records are not held as the strategy promises."""
        told: set[str] = set()

        def tell(shortfall: str) -> None:
            if shortfall not in told:
                logger.warning("strategy %s continues as replay: %s", self.recovery, shortfall)
                self.ledger.record(lease, Degraded(note=f"{self.recovery} continued as replay: {shortfall}"))
            told.add(shortfall)

        return tell

    @cached_property
    def gate(self) -> Gate:
        """What a batch passes before its commit."""
        judge = self.judge if self.pipeline.quality.when == "before_commit" else None
        return Gate(self.pipeline, self.run_id, self.ledger, judge)

    def tables(self, epoch: Epoch) -> Tables:
        """Return the tables of an epoch."""
        return Tables.of(self.pipeline, self.home, epoch)

    def redriven(self) -> Tables:
        """Return the tables under the application id of redrives."""
        return Tables.redriven(self.pipeline, self.home)

    def opened_source(self) -> Source:
        """Open the source; it is closed when the run ends."""
        return self.opened(self.pipeline.source.config.at(self.ledger.offsets.epoch(self.pipeline.name).positions))

    def opened(self, config: SourceConfig) -> Source:
        """Open the source with these settings: those of one cluster, if there are several."""
        return self.resources.enter_context(self.pipeline.source.kind.opened(config, self.home, self.pipeline.name))

    def reader(self, spark: SparkSession, source: Source) -> SourceReader:
        """Return the Spark half of the source."""
        reader: SourceReader = self.pipeline.source.kind.read_with(spark, self.pipeline.source.config, source)
        return reader

    @cached_property
    def _beginning(self) -> Future[SparkSession]:
        pool = ThreadPoolExecutor(1, "session")
        begun = pool.submit(self.open_session)
        pool.shutdown(wait=False)
        return begun

    def begin_session(self) -> None:
        """Begin to create the Spark session, which takes seconds, beside what is done until :meth:`session`."""
        _ = self._beginning

    def session(self) -> SparkSession:
        """Return the Spark session; creating it takes seconds, if it has not begun."""
        if self.judge is not None:
            self.judge.warm_up()  # in parallel: this process now mostly waits for the JVM
        with self.watch.phase("session"):
            if "_beginning" in self.__dict__:
                self._beginning.result()
            spark = self.open_session()  # it is there then; over Spark Connect it becomes that of this thread
        point("session-started")
        return spark

    @cached_property
    def _own_lookups(self) -> Lookups:
        return Lookups.of(self.pipeline, self.home)

    def lookups(self, tables: Tables, batch: int | None, *, own: bool = False) -> Lookups:
        """Return the tables that the transform joins, at the versions that a batch has to read.

        Those with which it was begun, if a driver died on it; else the versions of this run, which it decides once.

        Parameters
        ----------
        batch
            Its number; None for one that is not planned yet.
        own
            Whether only another attempt of this run goes on with the versions with which the batch was begun.

        Raises
        ------
        ConfigError
            If a table or a version is gone.
        SourceUnreachableError
            If a storage does not answer.
        """
        if not self.pipeline.tables:
            return NO_LOOKUPS
        run = self.run_id if own else None
        begun = (
            {}
            if batch is None
            else self.ledger.facts.tables_begun(self.pipeline.name, tables.epoch.number, batch, run_id=run)
        )
        return Lookups.of(self.pipeline, self.home, begun) if begun else self._own_lookups

    def writer(self, spark: SparkSession, tables: Tables, lookups: Lookups | None = None) -> BatchWriter:
        """Return the writer of batches for these tables, after checking that the transform fits the tables.

        Parameters
        ----------
        lookups
            The tables that the transform joins; by default at the versions of this run.

        Raises
        ------
        ConfigError
            If it does not, or if the suite does not fit the transform.
        """
        with self.watch.phase("planning"):
            ask(self.pipeline.decode.needs)
            if lookups is None:
                lookups = self._own_lookups
            transform = transforms.transformer(self.pipeline, lookups)
            shape = shape_of(spark, self.pipeline, transform)
            if self.judge is not None:
                self.judge.check()
                self.judge.check_columns(shape.schema.names)
            split = Split.of(spark, self.pipeline, shape.schema)
            tables.sink.check(shape.schema)
            tables.also.check(shape.schema)
            tables.quarantine.check(SCHEMA)
        keeps = self.pipeline.keeps
        kind: type[BatchWriter] = BatchWriter if keeps is None else imported(kind_of("operators", keeps).writer)
        writer = kind(
            self.pipeline,
            self.run_id,
            transform,
            shape.schema,
            tables.sink,
            tables.quarantine,
            opaque=shape.opaque,
            split=split,
            also=tables.also,
            lookups=lookups,
        )
        if self.pipeline.origins is not None:
            writer = replace(writer, screen=Screen(self.pipeline, partial(settled_of, self.ledger, self.pipeline.name)))
        return replace(writer, taken=shape.rows) if isinstance(writer, ResultWriter) else writer

    def warm_up(self, spark: SparkSession, recovery: Recovery, offsets: int) -> None:
        """Prepare the Arrow path in the background, if a run of so many offsets may take it; return at once."""
        if not in_workers(offsets):
            return
        with suppress(Exception):  # the run raises what is wrong when it comes to it
            sketch(spark, self.pipeline, recovery)
            warm_up(spark)

    def arrow(self, spark: SparkSession, writer: BatchWriter, recovery: Recovery) -> ArrowPath | None:
        """Return the Arrow path, if these batches can take it; the log says why not.

        Parameters
        ----------
        recovery
            As for :func:`sluice_spark.arrow.plan.plan_of`.
        """
        self.paths.append(self._arrow(spark, writer, recovery))
        return self.paths[-1]

    def _arrow(self, spark: SparkSession, writer: BatchWriter, recovery: Recovery) -> ArrowPath | None:
        try:
            rules = writer.split.rules if writer.split is not None else ()
            plan = plan_of(spark, self.pipeline, recovery, writer.schema, rules)
        except NotArrowError as why:
            logger.info("records take the Spark path: %s", why)
            return None
        blind = writer.opaque and self.pipeline.transform.arrow is None
        root = None if blind else writer.sink.staging
        if root is None or (is_url(root) and not self.pipeline.sink.kind.delta):  # a catalog's table may be anywhere
            return None
        return ArrowPath(spark, plan, self.run_id)
