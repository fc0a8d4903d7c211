"""A run that lets a pipeline go on with another cluster, in a new epoch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from sluice.errors import CheckpointError, ConfigError, SluiceError
from sluice.ledger import Lease
from sluice.run.failover import goes_to, possible
from sluice.run.resetting import Reset, Standing, united
from sluice.sources.base import Source
from sluice.sources.clusters import active_of
from sluice.sources.state import TopicState
from sluice_spark.engine.logs import logger
from sluice_spark.runs.reset import ResetRun
from sluice_spark.runs.tables import Tables

__all__ = ["FailoverRun"]

_KEPT = "nothing was changed; the pipeline reads the cluster that it read before"


@dataclass
class FailoverRun(ResetRun):
    """Closes the pipeline's epoch, and opens the next one in another cluster; see :mod:`sluice.run.failover`.

    Parameters
    ----------
    to
        The connection of that cluster.

    Notes
    -----
    As for :class:`ResetRun`, one commit to the sink decides, and any later run finishes what a dead driver began.
    """

    kind: ClassVar[str] = "failover"

    to: str = ""

    def preview(self) -> Reset:
        """Return what would be done; nothing is changed, and no lease is needed."""
        possible(self.pipeline, self.to)
        with self.context.resources:
            return self.plan(
                self.context.tables(self.ledger.offsets.epoch(self.pipeline.name)), self.context.opened_source()
            )

    def _drive(self, lease: Lease) -> str | None:
        possible(self.pipeline, self.to)
        tables = self._settled(lease)
        kafka = self.pipeline.kafka
        if kafka.at(tables.epoch.positions).active == self.to:
            self._plan(lease, [], [], epoch=tables.epoch.number)
            logger.info("%s is the cluster that the pipeline reads already", self.to)
            return None
        if self.ledger.offsets.resets(self.pipeline.name).by(self.context.run_id):
            raise ConfigError(
                f"run {self.context.run_id!r} was a failover already, and the pipeline went on since",
                state=_KEPT,
                next_step="run the same command with another run id",
            )
        found = self.plan(tables, self.context.opened_source())
        self._plan(lease, [], [], epoch=tables.epoch.number)
        self.carry_out(lease, tables, found)
        return None

    def plan(self, tables: Tables, source: Source, states: Sequence[TopicState] | None = None) -> Reset:
        """Return what is to be done; ``source`` is the cluster that is left.

        Raises
        ------
        ConfigError
            If it cannot be done.
        SluiceError
            If the cluster does not answer with which the pipeline is to go on.
        """
        name, kafka = self.pipeline.name, self.pipeline.kafka
        if not self.ledger.runs.newest(name, kind="live", limit=1):
            raise ConfigError(
                f"the ledger has no live run of {name!r}: there is nothing to go on with",
                state=_KEPT,
                next_step=f"sluice run {self.pipeline.called} starts the first one; to begin with {self.to!r}, name it "
                "first in source.kafka.clusters",
            )
        if tables.sink.as_it_is() is None and united(self.ledger, name):
            raise ConfigError(
                f"there is no sink at {tables.sink.path}, and the ledger has rows in it",
                state=_KEPT,
                next_step="restore it; then run the same command again",
            )
        there = self.context.opened(kafka.on(kafka.prefix_of(self.to))).snapshot() if states is None else states
        left: list[TopicState] | None = None
        try:
            left = source.snapshot()
        except SluiceError as error:
            logger.warning("%s: it is left as runs saw it", error.what)
        seen = self.ledger.runs.last_plan(name, tables.epoch.number)
        with suppress(CheckpointError):
            batch = tables.checkpoint.open_batch()
            seen = [*seen, *(tables.checkpoint.ranges_of(batch) if batch is not None else [])]
        leaving = active_of(tables.epoch.positions)
        return goes_to(
            self.pipeline,
            tables.epoch,
            self.to,
            reason=self.context.reason or "",
            standing=Standing(
                self._reached(tables),
                united(self.ledger, name),
                self.ledger.runs.topic_ids(name),
                [span for span in seen if active_of({span.topic: {}}) == leaving],
            ),
            states=there,
            left=left,
        )
