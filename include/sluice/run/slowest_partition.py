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
    return slowest(ledger.facts.partition_times(pipeline.name, epoch), of.hold.idle_after)


def slowest(times: Iterable[PartitionTime], idle_after: timedelta) -> PartitionTime | None:
    """Return the partition whose latest event time is the earliest of all that are not idle; None if none is known.

    A partition is idle if ``idle_after`` lies between the first batch without a record of it and the newest batch. So
    it takes two batches without it, and a pipeline that rests makes none idle. The clock of now does not matter: the
    same batches give the same answer. A batch whose driver had a clock that was behind hides no other one.

    Parameters
    ----------
    times
        For each partition of each batch, newest first. No more are taken than decide it.
    """
    span, latest = idle_after / timedelta(milliseconds=1), dict[tuple[str, int], PartitionTime]()
    newest = since = batch = None
    for each in times:
        if newest is None or since is None or batch is None:
            newest = since = batch = each.at
        if each.at != batch:
            since, batch = batch, each.at  # the batch after this one
        if newest - max(since, each.at) >= span:
            break
        key = each.topic, each.partition
        if key not in latest or each.latest > latest[key].latest:
            latest[key] = each
    return min(latest.values(), key=lambda each: (each.latest, each.topic, each.partition), default=None)
