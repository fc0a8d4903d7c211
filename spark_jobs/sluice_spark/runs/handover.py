"""The hand-over from one epoch to the next, when the strategy changes to or from ``wal``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from sluice.errors import SluiceError
from sluice.faults import point
from sluice.ledger import Epoch
from sluice.ledger.events import EpochOpened
from sluice.ranges import Positions
from sluice.recovery import Route
from sluice.run.preflight import check as preflight
from sluice.wal import DamagedLogError
from sluice_spark.engine.logs import logger
from sluice_spark.runs.epoch_end import HANDOVER, seal_off
from sluice_spark.runs.log_route import LogRoute
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
        Applies the batches that only the log holds, before the epoch is closed: Kafka may no longer have them.
    """

    route: LogRoute

    def to(self, target: Epoch, tables: Tables, left: Sequence[Sealed]) -> Tables:
        """Hand over to the target epoch; return its tables.

        The epoch is closed by a commit to the sink. The commit takes the number of the batch that would start at these
        positions, so that a driver that still prepares this batch cannot commit it.

        Parameters
        ----------
        left
            Batches of the old epoch that are in the log but not in the sink.

        Raises
        ------
        LeaseHeldError
            If another driver committed that batch meanwhile.
        """
        batches = self.route.batches
        context, lease = batches.context, batches.lease
        entered = context.ledger.offsets.last_batch(context.pipeline.name, tables.epoch.number)
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
                state="the epoch is still open; this driver did not close it",
                next_step="run again: the next run continues after that batch",
            )
        point("epoch-closed")
        seal_off(tables, note)
        context.ledger.record(lease, EpochOpened(epoch=target.number, lineage=target.route, positions=positions))
        point("epoch-opened")
        logger.info(
            "epoch %d (%s) was closed; epoch %d (%s) starts at its positions",
            tables.epoch.number, tables.epoch.route.value, target.number, target.route.value,
        )  # fmt: skip
        return context.tables(Epoch(target.number, target.route, positions))

    def _to_close(self, tables: Tables, target: Epoch) -> tuple[Sink, StructType]:
        """Return the sink and the columns for the commit that closes an epoch.

        If the transform no longer fits the sink, the change to strategy ``wal`` is still possible, because landing does
        not need the transform: the closing commit has no rows and uses the columns of the existing table.

        Raises
        ------
        SluiceError
            If they do not fit, and the next epoch does not land records or this one committed nothing to the sink.
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
            If it does not.
        """
        positions = {topic: dict(parts) for topic, parts in behind.items()}
        for item in (item for sealed in reversed(unapplied) for item in sealed.ranges):
            positions[item.topic][item.partition] = item.start  # Spark may have removed the plans of these batches
        states, name = self.route.batches.states, self.route.batches.context.pipeline.name
        try:
            known = self.route.batches.context.ledger.runs.topic_ids(name)
            preflight(name, positions, states, known)
        except SluiceError:
            raise damaged from None
        if not states:
            raise damaged
        logger.warning("%s. The source still has these offsets: they are read from it", damaged.what)
        return positions
