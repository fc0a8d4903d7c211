"""Which partition holds the watermark back, if the pipeline file says ``hold``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from sluice.ledger import Ledger, PartitionTime
from sluice.pipeline import Pipeline

__all__ = ["held_by", "slowest"]


def held_by(ledger: Ledger, pipeline: Pipeline, epoch: int) -> PartitionTime | None:
    """Return the partition that holds the watermark in the next run; None without ``hold``, or if none is known."""
    of = pipeline.stateful
    if of is None or of.hold is None:
        return None
    return slowest(ledger.partition_times(pipeline.name, epoch), of.hold.idle_after)


def slowest(times: Iterable[PartitionTime], idle_after: timedelta) -> PartitionTime | None:
    """Return the partition whose latest event time is the earliest of all that are not idle; None if none is known.

    A partition is idle if ``idle_after`` has passed between the last batch that had records of it and the last batch
    that had any. So a pipeline that rests makes none idle, and the clock of now does not matter: the same batches give
    the same answer.

    Parameters
    ----------
    times
        Of each partition of each batch, newest first. No more are taken than decide it.
    """
    spans, newest, latest = idle_after / timedelta(milliseconds=1), None, dict[tuple[str, int], PartitionTime]()
    for each in times:
        newest = each.at if newest is None else newest
        if newest - each.at >= spans:
            break
        key = each.topic, each.partition
        if key not in latest or each.latest > latest[key].latest:
            latest[key] = each
    return min(latest.values(), key=lambda each: (each.latest, each.topic, each.partition), default=None)
