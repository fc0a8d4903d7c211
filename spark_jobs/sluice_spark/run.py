"""One bounded run: lease, reconcile, preflight, drain, judge, close."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluice.checkpoint import Checkpoint
from sluice.connections import Connection
from sluice.errors import LeaseHeldError, SluiceError
from sluice.faults import point
from sluice.home import Home
from sluice.kafka import Cluster, KafkaSettings
from sluice.kafka.cluster import TopicState, ends, starts
from sluice.ledger import Lease, Ledger
from sluice.preflight import check as preflight
from sluice.ranges import OffsetRange, Positions, ranges_between
from sluice.recovery import Recovery
from sluice.spec import Pipeline
from sluice_spark import transform as transforms
from sluice_spark.batch import BatchWriter
from sluice_spark.decode import decode, source_columns
from sluice_spark.failures import classify
from sluice_spark.log import logger
from sluice_spark.progress import Progress
from sluice_spark.quality.judge import Judge
from sluice_spark.quarantine import SCHEMA
from sluice_spark.reconcile import reconcile
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sources.kafka import stream
from sluice_spark.stopwatch import Stopwatch

__all__ = ["BoundedRun", "sinks"]


def sinks(pipeline: Pipeline, home: Home, epoch: int) -> tuple[DeltaSink, DeltaSink]:
    """Return the sink and the quarantine of a pipeline's epoch."""
    path = home.resolve(pipeline.sink.delta.path)
    app = f"sluice:{pipeline.name}:{epoch}"
    return (
        DeltaSink(path, app, pipeline.sink.delta.partition_by),
        DeltaSink(f"{path}_quarantine", f"{app}:quarantine"),
    )


@dataclass
class BoundedRun:
    """A live run: reads what Kafka holds now, and no further.

    Parameters
    ----------
    run
        The run's id. Another attempt of the same run uses the same id.
    open_session
        Makes the Spark session; called only when there is something to read.
    max_records
        About how many records a batch may have.
    judge
        Judges the run after its last batch; None leaves it without a verdict.

    Notes
    -----
    Killed at any instruction, the next run (with the same id or another) finds what is committed, reads the open
    batch's ranges again, and ends with the same rows.
    """

    pipeline: Pipeline
    run: str
    ledger: Ledger
    home: Home
    open_session: Callable[[], SparkSession]
    recovery: Recovery
    max_records: int
    judge: Judge | None
    watch: Stopwatch = field(default_factory=Stopwatch)
    _planned: bool = field(default=False, init=False)

    def execute(self) -> dict[str, Any]:
        """Run it; return its account.

        Raises
        ------
        SluiceError
            By type, after the run was closed as ``failed`` in the ledger.
        """
        began = time.monotonic()
        name = self.pipeline.name
        with self.ledger.acquire(name, self.run) as lease:
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
                    next_step="read the traceback above; run again when the cause is mended",
                )
                self._close_failed(lease, unknown, time.monotonic() - began)
                raise
            self.ledger.run_closed(lease, state="done", seconds=round(time.monotonic() - began, 3), verdict=verdict)
        logger.info("seconds: %s (query holds ledger, batches and commits)", self.watch)
        return self.ledger.account(name, self.run)

    def _drive(self, lease: Lease) -> str | None:
        name, source = self.pipeline.name, self.pipeline.kafka
        epoch = self.ledger.epoch(name)
        checkpoint = Checkpoint(self.home.checkpoint(name, epoch))
        sink, quarantine = sinks(self.pipeline, self.home, epoch)
        settings = KafkaSettings.from_connection(Connection.from_env(source.connection))
        cluster = Cluster(settings)
        with self.watch.phase("planning"):
            reconcile(self.ledger, lease, epoch=epoch, checkpoint=checkpoint, sink=sink, quarantine=quarantine)

        known_ids = self.ledger.topic_ids(name)

        def ask_broker() -> list[TopicState]:
            states = cluster.snapshot(source.topics, isolation_level=source.isolation_level)
            open_batch = checkpoint.open_batch()
            open_ranges = checkpoint.ranges_of(open_batch) if open_batch is not None else []
            preflight(name, checkpoint.positions(), states, known_ids, open_ranges)
            return states

        with self.watch.phase("planning"):
            states = ask_broker()
        positions = checkpoint.positions()
        ranges = self._plan(positions, states)
        self.ledger.run_planned(
            lease,
            kind="live",
            recovery=self.recovery.value,
            epoch=epoch,
            ranges=ranges,
            topic_ids={s.topic: s.topic_id for s in states},
        )
        self._planned = True
        point("run-planned")
        logger.info("run %s of %s: %d offsets to read", self.run, name, sum(map(len, ranges)))
        progress = Progress(ends(states), positions or starts(states))
        if ranges or positions is None or checkpoint.open_batch() is not None:
            if self.judge is not None:
                self.judge.warm_up()  # from here on this process mostly waits for the JVM
            with self.watch.phase("session"):
                spark = self.open_session()
            point("session-started")
            with self.watch.phase("planning"):
                writer = self._writer(spark, settings, cluster, sink, quarantine)
            with self.watch.phase("query"):
                self._drain(spark, writer, lease, epoch, checkpoint, progress, ask_broker)
            point("query-ended")
        with self.watch.phase("judging"):
            return self._judge(lease, sink)

    def _plan(self, positions: Positions | None, states: list[TopicState]) -> list[OffsetRange]:
        if positions is None:
            latest = self.pipeline.kafka.starting_offsets == "latest"
            positions = ends(states) if latest else starts(states)
        return ranges_between(positions, ends(states))

    def _writer(
        self, spark: SparkSession, settings: KafkaSettings, cluster: Cluster, sink: DeltaSink, quarantine: DeltaSink
    ) -> BatchWriter:
        transform = transforms.transformer(self.pipeline)
        empty = spark.createDataFrame(
            [],
            "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP",
        )
        out = transforms.check(self.pipeline, transform, source_columns(decode(empty, self.pipeline.decode)))
        sink.check(out.schema.add("_run", "string"))
        quarantine.check(SCHEMA)
        return BatchWriter(self.pipeline, self.run, settings, cluster, transform, sink, quarantine)

    def _drain(
        self,
        spark: SparkSession,
        writer: BatchWriter,
        lease: Lease,
        epoch: int,
        checkpoint: Checkpoint,
        progress: Progress,
        ask_broker: Callable[[], object],
    ) -> None:
        open_batch = checkpoint.open_batch()
        failures: list[Exception] = []

        def on_batch(records: DataFrame, batch: int) -> None:
            try:
                self._on_batch(records, batch, writer, lease, epoch, checkpoint, progress, sweep=batch == open_batch)
            except Exception as error:
                failures.append(error)
                raise

        try:
            (
                stream(spark, writer.settings, self.pipeline.kafka, self.max_records)
                .writeStream.foreachBatch(on_batch)
                .queryName(f"sluice {self.pipeline.name}")
                .option("checkpointLocation", checkpoint.path)
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )
        except Exception as error:
            raise classify(failures[0] if failures else error, ask_broker) from error

    def _on_batch(
        self,
        records: DataFrame,
        batch: int,
        writer: BatchWriter,
        lease: Lease,
        epoch: int,
        checkpoint: Checkpoint,
        progress: Progress,
        *,
        sweep: bool,
    ) -> None:
        ranges = checkpoint.ranges_of(batch)
        name = f"e{epoch}-{batch:06d}"
        if writer.sink.version() >= batch:
            # the driver died between the sink's commit and Spark's; reconciling entered it into the ledger
            logger.info("batch %d is in the sink already", batch)
            if sweep:
                writer.sweep(name, batch)
            return
        with self.watch.phase("ledger"):
            self.ledger.batch_started(lease, epoch=epoch, batch=batch, ranges=ranges)
        point("batch-started")
        progress.begin(batch, ranges)
        with self.watch.phase("batches"):
            prepared = writer.prepare(records, name, ranges)
        with self.watch.phase("ledger"):
            lease.verify()
        accounts = [a.as_dict() for a in prepared.accounts]
        with self.watch.phase("commits"):
            writer.commit(batch, prepared, {"pipeline": self.pipeline.name, "run": self.run, "accounts": accounts})
        with self.watch.phase("ledger"):
            self.ledger.batch_committed(lease, epoch=epoch, batch=batch, accounts=prepared.accounts)
        point("batch-recorded")
        if sweep:
            writer.sweep(name, batch)
        progress.end(batch, ranges, prepared.accounts)

    def _judge(self, lease: Lease, sink: DeltaSink) -> str | None:
        name = self.pipeline.name
        # rows of a run that died before it was judged are judged with this one
        runs = [*self.ledger.unjudged(name), self.run]
        if not any(self.ledger.accounts(name, run) for run in runs):
            self.ledger.judged(lease, name, self.run, verdict="empty", judgement={})
            logger.info("nothing new: verdict empty")
            return "empty"
        if self.judge is None:
            return None
        judgement = self.judge.judge(self.open_session(), sink, runs)
        for run in runs:
            self.ledger.judged(lease, name, run, verdict=judgement.verdict, judgement=judgement.as_dict())
        point("judged")
        return judgement.verdict

    def _close_failed(self, lease: Lease, error: SluiceError, seconds: float) -> None:
        report = {
            "type": type(error).__name__, "exit_code": int(error.exit_code), "what": error.what, "state": error.state,
            "next": error.next_step,
        }  # fmt: skip
        try:
            if not self._planned:
                name = self.pipeline.name
                self.ledger.run_planned(
                    lease,
                    kind="live",
                    recovery=self.recovery.value,
                    epoch=self.ledger.epoch(name),
                    ranges=[],
                    topic_ids=self.ledger.topic_ids(name),
                )
            self.ledger.run_closed(lease, state="failed", seconds=round(seconds, 3), error=report)
        except SluiceError as second:
            logger.warning("the failure could not be entered into the ledger: %s", second.what)
