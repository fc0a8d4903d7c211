"""What all parts of a run share: what it is asked to do, and where it keeps what it did."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from sluice.faults import point
from sluice.home import Home
from sluice.ledger import Epoch, Ledger
from sluice.pipeline import Pipeline
from sluice.recovery import Recovery
from sluice.sources.base import Source
from sluice_spark.batch.quarantine import SCHEMA
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.engine.stopwatch import Stopwatch
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.tables import Tables
from sluice_spark.sources.base import SourceReader
from sluice_spark.strategies.base import Strategy
from sluice_spark.strategies.chosen import STRATEGIES
from sluice_spark.transforms import transform as transforms
from sluice_spark.transforms.sample import shape_of

__all__ = ["RunContext"]


@dataclass(frozen=True)
class RunContext:
    """The context of one run.

    Parameters
    ----------
    run_id
        The run's id. Another attempt of the same run uses the same id.
    open_session
        Makes the Spark session; called only when there is something to read.
    judge
        Judges the run after its last batch; None leaves it without a verdict.
    reason
        Why somebody asked for it; kept in the ledger.
    resources
        Closed when the run ends.
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

    @property
    def strategy(self) -> Strategy:
        """The strategy of the run."""
        return STRATEGIES[self.recovery]

    def tables(self, epoch: Epoch) -> Tables:
        """Return the places of an epoch."""
        return Tables.of(self.pipeline, self.home, epoch)

    def redriven(self) -> Tables:
        """Return the places under which redriven ranges are committed."""
        return Tables.redriven(self.pipeline, self.home)

    def opened_source(self) -> Source:
        """Return the source, which is closed when the run ends."""
        source = self.pipeline.source
        return self.resources.enter_context(source.kind.opened(source.config))

    def reader(self, spark: SparkSession, source: Source) -> SourceReader:
        """Return the Spark half of the source."""
        reader: SourceReader = self.pipeline.source.kind.read_with(spark, self.pipeline.source.config, source)
        return reader

    def session(self) -> SparkSession:
        """Return the Spark session, which takes seconds the first time."""
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
            self.pipeline, self.run_id, transform, shape.schema, tables.sink, tables.quarantine, opaque=shape.opaque
        )
