"""The lag of a pipeline now: the checkpoint's positions against the broker's answer."""

from __future__ import annotations

from sluice.checkpoint import Checkpoint
from sluice.connections import Connection
from sluice.errors import SluiceError
from sluice.home import Home
from sluice.kafka.cluster import Cluster
from sluice.kafka.settings import KafkaSettings
from sluice.lag import Backlog, measure
from sluice.ledger import Epoch
from sluice.spec import Pipeline

__all__ = ["backlog", "waiting"]


def backlog(pipeline: Pipeline, cluster: Cluster, *, home: Home, epoch: Epoch) -> Backlog:
    """Ask the checkpoint first and the broker second, so that a run in between shows as less lag, never as negative.

    Raises
    ------
    SluiceError
        As :meth:`Cluster.snapshot` does; unknown is never zero.
    """
    positions = Checkpoint(home.checkpoint(pipeline.name, epoch.number), epoch.positions).positions()
    states = cluster.snapshot(pipeline.kafka.topics, isolation_level=pipeline.kafka.isolation_level)
    return measure(pipeline.name, positions, states, pipeline.kafka.starting_offsets)


def waiting(pipeline: Pipeline, kafka: Connection, *, home: Home, epoch: Epoch) -> int | None:
    """Return about how many records wait, for a caller that only wants a hint; None when the broker does not say."""
    try:
        cluster = Cluster(KafkaSettings.from_connection(kafka), timeout=5)
        return backlog(pipeline, cluster, home=home, epoch=epoch).records
    except SluiceError:
        return None
