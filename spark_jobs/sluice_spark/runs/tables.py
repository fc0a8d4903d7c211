"""Everything durable that one epoch of a pipeline consists of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from sluice.delta.names import app_id, interval_app_id, quarantine_app_id
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import REDRIVEN, Epoch
from sluice.pipeline import Pipeline
from sluice.ranges import Positions
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.sinks.base import SinkKind
from sluice.wal import WriteAheadLog
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import ReplaceableSink, Sink
from sluice_spark.sinks.delta.table import DeltaSink

__all__ = ["Tables"]

_KEEPS_HISTORY = {"delta.enableExpiredLogCleanup": "false"}
"""Of the write-ahead log: what is sealed and not applied yet is found by the notes of its commits, however old."""


@dataclass(frozen=True)
class Tables:
    """The places of one epoch; none of them need exist yet.

    Attributes
    ----------
    log
        The write-ahead log, for reading.
    log_table
        The same log for landing, under this epoch's application id.
    """

    epoch: Epoch
    checkpoint: Checkpoint
    sink: Sink
    quarantine: DeltaSink
    log: WriteAheadLog
    log_table: DeltaSink
    pipeline: str
    kind: SinkKind

    @classmethod
    def of(cls, pipeline: Pipeline, home: Home, epoch: Epoch) -> Tables:
        """Return the places of a pipeline's epoch; number 0 is what was redriven."""
        number = epoch.number
        path, kind = home.resolve(pipeline.sink.config.path), pipeline.sink.kind
        app = app_id(pipeline.name, number)
        log = WriteAheadLog(home.log(pipeline.name), pipeline.name)
        return cls(
            epoch,
            Checkpoint(home.checkpoint(pipeline.name, number), epoch.positions),
            kind.opened(path, app, pipeline.sink.config.partition_columns),
            DeltaSink(home.resolve(pipeline.quarantine_path), quarantine_app_id(app)),
            log,
            DeltaSink(log.path, log.app_id(number), settings=_KEEPS_HISTORY),
            pipeline.name,
            kind,
        )

    @classmethod
    def redriven(cls, pipeline: Pipeline, home: Home) -> Tables:
        """Return the places under which redriven ranges are committed: a count of their own."""
        return cls.of(pipeline, home, Epoch(REDRIVEN, Route.DIRECT, None))

    def of_interval(self, pipeline: str, interval: str, number: int) -> Tables:
        """Return the same tables as an interval's runs write them: a count for each interval.

        Parameters
        ----------
        interval
            Its key; number is what the ledger gave it.
        """
        app = interval_app_id(pipeline, interval)
        return replace(
            self,
            epoch=Epoch(-number, Route.DIRECT, None),
            sink=self.kind.opened(self.sink.path, app, self.sink.partition_by),
            quarantine=DeltaSink(self.quarantine.path, quarantine_app_id(app)),
        )

    @property
    def filled(self) -> Sink:
        """The table that the epoch's stream fills."""
        return self.log_table if self.epoch.route is Route.LOG else self.sink

    @property
    def replaceable(self) -> ReplaceableSink | None:
        """The sink, where rows of it can be replaced."""
        return cast(ReplaceableSink, self.sink) if self.kind.replaceable else None

    def replacing(self) -> ReplaceableSink:
        """Return the sink, to replace rows of it.

        Raises
        ------
        ConfigError
            When it cannot.
        """
        sink = self.replaceable
        if sink is None:
            raise ConfigError(
                f"rows of the sink {self.sink.path} cannot be replaced: it is of a kind that only appends",
                state="nothing was read or written; sink and quarantine are as they were",
                next_step="choose a sink that can, such as sink.delta; sluice redrive still fills lost ranges",
            )
        return sink

    def position(self) -> Positions | None:
        """Return where the stream stopped; None before the first batch."""
        return self.position_behind(self.filled.version())

    def position_behind(self, held: int) -> Positions | None:
        """Return where the newest batch of :attr:`filled` ends: Spark's own record may be one batch behind."""
        return self.checkpoint.end_of(held) if held in self.checkpoint.planned() else self.checkpoint.positions()

    def mend_checkpoint(self) -> None:
        """Clear out of Spark's way what a power cut emptied and nothing rests on: :meth:`Checkpoint.mend`."""
        for name in self.checkpoint.mend(self.filled.version()):
            logger.warning(
                "%s/%s was empty, as a power cut leaves a file: Spark makes it again", self.checkpoint.path, name
            )

    def sweep(self, batch: int) -> None:
        """Remove what attempts at a batch left in sink and quarantine.

        Only once the sink holds the batch: until then a driver that was fenced between its last look at the lease and
        its commit may still enter its files, and they must be there.
        """
        self.sink.sweep(self.batch_name(batch))
        self.quarantine.sweep(self.batch_name(batch))

    def batch_name(self, batch: int) -> str:
        """Return the name of a batch's folders in sink and quarantine, where another pipeline may write, too."""
        number = self.epoch.number
        return f"{self.pipeline}-{f'e{number}' if number >= REDRIVEN else f'i{-number}'}-{batch:06d}"

    def landing_name(self, batch: int) -> str:
        """Return the name of a batch's folders in the write-ahead log, by which a segment tells its batch."""
        return f"e{self.epoch.number}-{batch:06d}"
