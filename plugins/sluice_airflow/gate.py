"""What a task does at the gate: the backlog now, and what to do when there is nothing to let through."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from sluice.home import Home
from sluice.kafka import Cluster, KafkaSettings
from sluice.kafka.backlog import backlog
from sluice.lag import Backlog
from sluice.ledger import Ledger
from sluice.spec import load

__all__ = ["OnIdle", "decide", "look"]


class OnIdle(StrEnum):
    """What a pipeline does when its backlog is not over its limit."""

    PROCEED = "proceed"
    """Run all the same: a run that finds nothing ends at once with the verdict ``empty``, and is on record."""
    WAIT = "wait"
    """Wait until there is enough, or until the sensor's timeout."""
    SKIP = "skip"
    """Skip the run, and everything after it; nothing is recorded."""


def look(pipeline: str, settings: KafkaSettings, *, timeout: float = 20.0) -> tuple[Backlog, int]:
    """Return the backlog of a pipeline (name or path) and the limit of its file.

    Blocks for up to ``timeout`` seconds; call it from a thread where that matters.

    Raises
    ------
    SourceUnreachableError
        When the lag is unknown. Unknown is never zero.
    SluiceError
        Every other reason that waiting does not mend.
    """
    spec = load(pipeline)
    found = backlog(spec, Cluster(settings, timeout=timeout), home=Home.from_env(), ledger=Ledger.open())
    if found.error is not None:
        raise found.error
    return found, spec.lag.max_records


def decide(found: Backlog, limit: int, on_idle: OnIdle) -> OnIdle:
    """Return ``PROCEED`` when a run is worth starting, otherwise what ``on_idle`` says."""
    found = replace(found, limits=replace(found.limits, max_records=limit))
    return OnIdle.PROCEED if found.worth_a_run else on_idle
