"""The lag of a pipeline now: the checkpoint's positions against the broker's answer."""

from __future__ import annotations

from datetime import datetime

from sluice.checkpoint import Checkpoint
from sluice.connections import Connection
from sluice.errors import SluiceError
from sluice.home import Home
from sluice.kafka.cluster import Cluster, TopicState
from sluice.kafka.settings import KafkaSettings
from sluice.lag import Backlog, Limits, PastRun, measure
from sluice.ledger import Epoch, Ledger
from sluice.spec import Pipeline

__all__ = ["backlog", "waiting"]


def backlog(
    pipeline: Pipeline,
    cluster: Cluster,
    *,
    home: Home,
    ledger: Ledger,
    limits: Limits | None = None,
    now: datetime | None = None,
) -> Backlog:
    """Ask the checkpoint and the ledger first and the broker second: a run in between shows as less lag, never as
    negative.

    A broker that is silent or refuses is no exception here: the verdict is ``UNKNOWN`` or ``AUTH``, and the typed
    error is in ``error``. Unknown is never zero.

    Parameters
    ----------
    limits
        Instead of the pipeline file's.
    now
        What ages are counted from, for tests; by default the time of the broker's answer.

    Raises
    ------
    SluiceError
        When the checkpoint or the ledger cannot be read.
    """
    name, source = pipeline.name, pipeline.kafka
    epoch = ledger.epoch(name)
    checkpoint = Checkpoint(home.checkpoint(name, epoch.number), epoch.positions)
    running = ledger.running(name)
    positions, open_batch = checkpoint.positions(), checkpoint.open_batch()
    planned = checkpoint.end_of(open_batch) if open_batch is not None else None
    known_ids, furthest, history = ledger.topic_ids(name), ledger.furthest(name), _history(ledger, name)
    try:
        states = cluster.snapshot(source.topics, isolation_level=source.isolation_level)
    except SluiceError as error:
        states = [TopicState(topic, "", {}, error=error) for topic in sorted(source.topics)]
    return measure(
        name,
        positions,
        states,
        source.starting_offsets,
        planned=planned,
        known_ids=known_ids,
        furthest=furthest,
        history=history,
        limits=limits or Limits.of(pipeline.lag),
        running=running,
        now=now,
    )


def waiting(pipeline: Pipeline, kafka: Connection, *, home: Home, epoch: Epoch) -> int | None:
    """Return about how many records wait, for a caller that only wants a hint; None when the broker does not say."""
    source = pipeline.kafka
    try:
        positions = Checkpoint(home.checkpoint(pipeline.name, epoch.number), epoch.positions).positions()
        cluster = Cluster(KafkaSettings.from_connection(kafka), timeout=5)
        states = cluster.snapshot(source.topics, isolation_level=source.isolation_level)
        return measure(pipeline.name, positions, states, source.starting_offsets).records
    except SluiceError:
        return None


def _history(ledger: Ledger, pipeline: str) -> list[PastRun]:
    """Return enough of the newest closed live runs to tell a pattern, newest first."""
    return [
        PastRun(row.state, planned, committed, (row.error or {}).get("exit_code"))
        for row, planned, committed in ledger.past(pipeline, limit=9)
    ]
