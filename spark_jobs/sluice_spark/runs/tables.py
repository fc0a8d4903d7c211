"""The durable state of one epoch of a pipeline: checkpoint, sink, quarantine and write-ahead log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from sluice.delta.names import app_id, interval_app_id, quarantine_app_id
from sluice.errors import ConfigError, SinkError
from sluice.facts import ChangedColumns
from sluice.home import Home
from sluice.ledger import REDRIVEN, Epoch
from sluice.pipeline import Pipeline
from sluice.ranges import Positions
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.sinks.base import SinkConfig, SinkKind
from sluice.wal import WriteAheadLog
from sluice_spark.batch import quarantine as quarantines
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.also import NO_ALSO, AlsoSinks
from sluice_spark.sinks.base import EvolvingSink, ReplaceableSink, Sink
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.attempts import attempted

__all__ = ["KEEPS_HISTORY", "Tables"]

KEEPS_HISTORY = {"delta.enableExpiredLogCleanup": "false", "delta.logRetentionDuration": "interval 7 days"}
"""Settings of the log's table: batches still to be applied are found by the metadata of its commits, however old. Only
a cleaning removes older commits."""


@dataclass(frozen=True)
class Tables:
    """The checkpoint and the tables of one epoch; none of them need exist yet.

    Attributes
    ----------
    log
        The write-ahead log, for reading.
    log_table
        The same log for landing, under this epoch's application id.
    config, path
        What the sink is opened with.
    applied
        The checkpoint of the stream that applies the log, if the pipeline has state and the route is the log. That
        stream numbers its batches by itself, because some of them have no records: they only close windows or forget
        keys. None if a batch of the log has the same number in the sink, or if there is no log.
    also
        The sinks of ``also``.
    """

    epoch: Epoch
    checkpoint: Checkpoint
    sink: Sink
    quarantine: DeltaSink
    log: WriteAheadLog
    log_table: DeltaSink
    pipeline: str
    kind: SinkKind
    config: SinkConfig
    path: str
    applied: str | None = None
    also: AlsoSinks = NO_ALSO

    @classmethod
    def of(cls, pipeline: Pipeline, home: Home, epoch: Epoch) -> Tables:
        """Return the tables of a pipeline's epoch; epoch 0 is for redrives."""
        number = epoch.number
        path, kind = home.resolve(pipeline.sink.config.location_of(pipeline.name)), pipeline.sink.kind
        app = app_id(pipeline.name, number)
        prefix = pipeline.source.config.prefix_at(epoch.positions)
        checkpoint = Checkpoint(home.checkpoint(pipeline.name, number), epoch.positions, prefix=prefix)
        log = WriteAheadLog(home.log(pipeline.name), pipeline.name)
        sink = kind.opened(pipeline.sink.config, path, app)
        return cls(
            epoch,
            checkpoint,
            sink,
            quarantines.opened(home.resolve(pipeline.quarantine_path), quarantine_app_id(app)),
            log,
            DeltaSink(log.path, log.app_id(number), settings=KEEPS_HISTORY),
            pipeline.name,
            kind,
            pipeline.sink.config,
            path,
            home.applied(pipeline.name, number) if _with_second(pipeline, epoch, checkpoint) else None,
            AlsoSinks.of(pipeline, home, app, sink),
        )

    @classmethod
    def redriven(cls, pipeline: Pipeline, home: Home) -> Tables:
        """Return the tables for redrives, which have a batch count of their own."""
        return cls.of(pipeline, home, Epoch(REDRIVEN, Route.DIRECT, None))

    def of_interval(self, pipeline: str, interval: str, number: int) -> Tables:
        """Return the same tables for runs of an interval; each interval has a batch count of its own.

        Parameters
        ----------
        interval
            The key of the interval.
        number
            Its number in the ledger.
        """
        app = interval_app_id(pipeline, interval)
        return replace(
            self,
            epoch=Epoch(-number, Route.DIRECT, None),
            sink=self.kind.opened(self.config, self.path, app),
            quarantine=quarantines.opened(self.quarantine.path, quarantine_app_id(app)),
            also=self.also.of_writer(app),
        )

    @property
    def applying(self) -> Tables:
        """The same tables for the stream that fills the sink: with state and a log, it has a checkpoint of its own.

        It begins where the log begins.

        Raises
        ------
        CheckpointError
            If the checkpoint does not say where that is.
        """
        if self.applied is None:
            return self
        start = self.checkpoint.initial()
        return replace(
            self,
            epoch=Epoch(self.epoch.number, Route.DIRECT, start),
            checkpoint=Checkpoint(self.applied, start, prefix=self.checkpoint.prefix),
            applied=None,
        )

    @property
    def opened(self) -> bool:
        """Whether a batch was planned and not committed, in either of the epoch's checkpoints."""
        there = [self.checkpoint, *([Checkpoint(self.applied)] if self.applied is not None else [])]
        return any(checkpoint.open_batch() is not None for checkpoint in there)

    @property
    def filled(self) -> Sink:
        """The table that the epoch's stream fills: the log or the sink."""
        return self.log_table if self.epoch.route is Route.LOG else self.sink

    @property
    def replaceable(self) -> ReplaceableSink | None:
        """The sink, if its rows can be replaced; else None."""
        return cast(ReplaceableSink, self.sink) if self.kind.replaceable else None

    def replacing(self) -> ReplaceableSink:
        """Return the sink, for replacing rows.

        Raises
        ------
        ConfigError
            If its rows cannot be replaced.
        """
        sink = self.replaceable
        if sink is None:
            raise ConfigError(
                f"rows of the sink {self.sink.path} cannot be replaced: this sink does not take single rows back",
                state="nothing was read or written; sink and quarantine are unchanged",
                next_step="use a sink that can replace rows, such as sink.delta; this one allows redriving lost ranges",
            )
        return sink

    def evolved(self, batch: int) -> ChangedColumns:
        """Return the columns that the commit of a batch added to the sink."""
        return ChangedColumns(cast(EvolvingSink, self.sink).evolved(batch) if self.kind.evolves else ())

    def position(self) -> Positions | None:
        """Return the position of the stream; None before the first batch."""
        return self.position_behind(self.filled.version())

    def position_behind(self, held: int) -> Positions | None:
        """Return the position after batch ``held`` of :attr:`filled`; Spark's commits may be one batch behind."""
        return self.checkpoint.end_of(held) if held in self.checkpoint.planned() else self.checkpoint.positions()

    def mend_checkpoint(self) -> None:
        """Remove incomplete files that no commit depends on, so that Spark can start: :meth:`Checkpoint.mend`."""
        for name in self.checkpoint.mend(self.filled.version()):
            logger.warning(
                "%s/%s or the state behind it was empty, as after a power cut: removed; Spark writes it again",
                self.checkpoint.path, name,
            )  # fmt: skip

    def sweep(self, batch: int) -> None:
        """Remove leftovers of uncommitted attempts at a batch from sink and quarantine.

        Call it only when the sink holds the batch. Until then, a driver that lost its lease after its last check may
        still commit its files, which must exist then.
        """
        self.sink.sweep(self.batch_name(batch))
        self.also.sweep(self.batch_name(batch))
        self.quarantine.sweep(self.batch_name(batch))

    def left_over(self) -> set[int]:
        """Return the batches of which an earlier driver may have left files: the open one, and those it read ahead."""
        opened = (self.checkpoint if self.applied is None else Checkpoint(self.applied)).open_batch()
        found = set() if opened is None else {opened}
        try:
            staging = self.sink.staging
        except SinkError:  # a catalog has no place for a table that was dropped
            return found
        if staging is not None:
            stem = self.batch_name(0).rpartition("-")[0]
            found |= attempted(staging, stem, newer_than=self.sink.version())
        return found

    def batch_name(self, batch: int) -> str:
        """Return the name of a batch's folders in sink and quarantine, which other pipelines may share."""
        number = self.epoch.number
        return f"{self.pipeline}-{f'e{number}' if number >= REDRIVEN else f'i{-number}'}-{batch:06d}"

    def landing_name(self, batch: int) -> str:
        """Return the name of a batch's folders in the write-ahead log; a segment's batch is known from it."""
        return f"e{self.epoch.number}-{batch:06d}"


def _with_second(pipeline: Pipeline, epoch: Epoch, checkpoint: Checkpoint) -> bool:
    """Return whether the epoch has a second checkpoint: by how it was begun, whatever the pipeline file says now."""
    if epoch.route is not Route.LOG:
        return False
    return checkpoint.defined() if checkpoint.planned() else pipeline.stateful is not None
