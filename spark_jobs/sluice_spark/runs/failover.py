"""A run that lets a pipeline go on with another cluster, in a new epoch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from sluice.errors import CheckpointError, ConfigError, SluiceError
from sluice.ledger import Lease
from sluice.run.actions import Failover
from sluice.run.failover import goes_to, possible
from sluice.run.reset_plan import Reset, Standing, united
from sluice.sources.base import Source
from sluice.sources.clusters import active_of
from sluice.sources.state import TopicState
from sluice_spark.engine.logs import logger
from sluice_spark.runs.reset import EpochRun
from sluice_spark.runs.tables import Tables

__all__ = ["FailoverRun"]

_KEPT = "nothing was changed; the pipeline reads the cluster that it read before"


@dataclass
class FailoverRun(EpochRun):
    """Lets the pipeline go on with another cluster; see :mod:`sluice.run.failover`."""

    kind: ClassVar[str] = "failover"

    action: Failover

    def check(self) -> None:
        """Refuse a cluster that the pipeline does not have."""
        possible(self.pipeline, self.action.to)

    def _drive(self, lease: Lease) -> str | None:
        self.check()
        tables = self._settled(lease)
        kafka = self.pipeline.kafka
        if kafka.at(tables.epoch.positions).active == self.action.to:
            self._plan(lease, [], [], epoch=tables.epoch.number)
            logger.info("%s is the cluster that the pipeline reads already", self.action.to)
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
        """Return what is to be done; ``source`` is the cluster that is left."""
        name, kafka = self.pipeline.name, self.pipeline.kafka
        if not self.ledger.runs.newest(name, kind="live", limit=1):
            raise ConfigError(
                f"the ledger has no live run of {name!r}: there is nothing to go on with",
                state=_KEPT,
                next_step=f"sluice run {self.pipeline.called} starts the first one; to begin with "
                f"{self.action.to!r}, name it first in source.kafka.clusters",
            )
        if tables.sink.as_it_is() is None and united(self.ledger, name):
            raise ConfigError(
                f"there is no sink at {tables.sink.path}, and the ledger has rows in it",
                state=_KEPT,
                next_step="restore it; then run the same command again",
            )
        there = self.context.opened(kafka.on(kafka.prefix_of(self.action.to))).snapshot() if states is None else states
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
            self.action.to,
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
