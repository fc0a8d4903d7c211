"""The hand-over from one epoch to the next: a change of strategy changes the route of the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from sluice.errors import SluiceError
from sluice.faults import point
from sluice.ledger import Epoch
from sluice.ranges import Positions
from sluice.recovery import Route
from sluice.run.preflight import check as preflight
from sluice.wal import DamagedLogError
from sluice_spark.engine.logs import logger
from sluice_spark.runs.logged import LogRoute
from sluice_spark.runs.reconcile import HANDOVER, seal_off
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import NOTHING, Sink, overtaken
from sluice_spark.strategies.apply import Sealed

__all__ = ["HandOver"]


@dataclass(frozen=True)
class HandOver:
    """Closes an epoch at its committed positions, and opens the next one there.

    Parameters
    ----------
    route
        By which what the log still holds is applied first: Kafka may no longer have it.
    """

    route: LogRoute

    def to(self, target: Epoch, tables: Tables, left: Sequence[Sealed]) -> Tables:
        """Change over; return the tables of the new epoch.

        The sink's commit decides: it takes the number of the batch that begins at these positions, so that a driver
        that still works at it cannot commit.

        Parameters
        ----------
        left
            Batches of the old epoch that are in the log and not in the sink.

        Raises
        ------
        LeaseHeldError
            When another driver committed that batch, just now.
        """
        batches = self.route.batches
        context, lease = batches.context, batches.lease
        entered = context.ledger.last_batch(context.pipeline.name, tables.epoch.number)
        reached = left[-1].batch if left else entered.batch if entered else -1
        number, positions = reached + 1, tables.position_behind(reached)
        if left:
            with self.route.applier(tables, left) as applier:
                try:
                    applier.finish()
                except DamagedLogError as damaged:
                    number = left[applier.done].batch
                    positions = self._position_before(positions or {}, left[applier.done :], damaged)
        sink, schema = self._to_close(tables, target)
        note: dict[str, Any] = {
            HANDOVER: {"epoch": target.number, "lineage": target.route.value, "positions": positions},
            "run": context.run_id,
            "pipeline": context.pipeline.name,
        }
        lease.verify()
        if not sink.commit(NOTHING, schema, number, note):
            raise overtaken(
                f"committed batch {number} to {tables.sink.path}",
                state="the epoch goes on; nothing was written by this driver",
                next_step="run again: the next run begins behind that batch",
            )
        point("epoch-closed")
        seal_off(tables, note)
        context.ledger.epoch_opened(lease, epoch=target.number, route=target.route, positions=positions)
        point("epoch-opened")
        logger.info(
            "epoch %d (%s) ended; epoch %d (%s) begins where it stopped",
            tables.epoch.number, tables.epoch.route.value, target.number, target.route.value,
        )  # fmt: skip
        return context.tables(Epoch(target.number, target.route, positions))

    def _to_close(self, tables: Tables, target: Epoch) -> tuple[Sink, StructType]:
        """Return the sink, and the columns, by which an epoch is closed.

        Where the transform no longer fits the sink, an epoch that is to land records is opened all the same: the commit
        that closes the old one has no rows, and takes the table as it is.

        Raises
        ------
        SluiceError
            When they do not fit, and the next epoch needs both, or the sink is not known to be this pipeline's.
        """
        batches = self.route.batches
        try:
            return tables.sink, batches.context.writer(batches.spark, tables).schema
        except SluiceError:
            there = tables.sink.as_it_is()
            if there is None or target.route is not Route.LOG or tables.sink.version() < 0:
                raise
        return there

    def _position_before(self, behind: Positions, unapplied: Sequence[Sealed], damaged: DamagedLogError) -> Positions:
        """Return the position before these batches, if the source still has everything from there on.

        Parameters
        ----------
        behind
            The position after all of them.

        Raises
        ------
        DamagedLogError
            When it has not.
        """
        positions = {topic: dict(parts) for topic, parts in behind.items()}
        for item in (item for sealed in reversed(unapplied) for item in sealed.ranges):
            positions[item.topic][item.partition] = item.start  # Spark may have removed how these were planned
        states, name = self.route.batches.states, self.route.batches.context.pipeline.name
        try:
            known = self.route.batches.context.ledger.topic_ids(name)
            preflight(name, positions, states, known)
        except SluiceError:
            raise damaged from None
        if not states:
            raise damaged
        logger.warning("%s. Kafka still has these offsets: they are read from there", damaged.what)
        return positions
