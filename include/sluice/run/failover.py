"""What a failover does: a pipeline goes on with another cluster, in a new epoch; pure.

The epoch that reads one cluster is closed, and the next one reads another one. Its streams have names of their own
(:mod:`sluice.sources.clusters`), so that offsets of two clusters are never mixed up.

- **Where it begins.** Where the pipeline left that cluster before; else at the start of what the cluster retains. Each
  record there that came from another cluster, and is settled already (:mod:`sluice.run.origins`), is a copy: it counts
  as filtered, and is not written again.
- **What stays behind.** What the old cluster had, and the pipeline did not read, is open as lost. It is closed when the
  mirror brings it, or by a redrive from the old cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluice.errors import ConfigError
from sluice.ledger import Epoch
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange, Positions
from sluice.run.reset_plan import Reset, Standing, plan
from sluice.sources.clusters import active_of
from sluice.sources.state import Key, TopicState

__all__ = ["goes_to", "possible"]

_UNTOUCHED = "nothing was read or written; the pipeline reads the cluster that it read before"


def possible(pipeline: Pipeline, to: str) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` if this pipeline cannot go on with that cluster."""
    kafka = pipeline.source.kafka
    if kafka is None or kafka.clusters is None:
        raise ConfigError(
            f"pipeline {pipeline.name!r} has one cluster: its file has no source.kafka.clusters",
            state=_UNTOUCHED,
            next_step="name the clusters there, the present one first, with the origin_header that the mirror writes",
        )
    if to not in kafka.clusters:
        raise ConfigError(
            f"source.kafka.clusters of {pipeline.name!r} does not name {to!r}",
            state=_UNTOUCHED,
            next_step=f"choose one of {', '.join(kafka.clusters)}; or name it there, if it mirrors the others",
        )


def goes_to(
    pipeline: Pipeline,
    now: Epoch,
    to: str,
    *,
    reason: str,
    standing: Standing,
    states: Sequence[TopicState],
    left: Sequence[TopicState] | None,
) -> Reset:
    """Return what a failover has to do.

    Parameters
    ----------
    now
        The epoch that it closes.
    to
        The connection of the cluster to go on with.
    standing
        With the positions in all clusters; unread is what runs planned to read of the cluster that it leaves, which
        had as much at least.
    states, left
        What the cluster has with which it goes on, and the one that it leaves; None if that one does not answer.

    Raises
    ------
    ConfigError
        If that is not possible.
    """
    possible(pipeline, to)
    kafka, reached = pipeline.kafka, standing.reached
    prefix, leaving = kafka.prefix_of(to), kafka.at(now.positions)
    behind = {stream: parts for stream, parts in reached.items() if active_of({stream: {}}) == leaving.prefix}
    fresh = {
        state.topic: {n: there.start for n, there in state.partitions.items() if n not in reached.get(state.topic, {})}
        for state in states
    }
    found = plan(
        pipeline,
        now,
        reason=reason,
        begin=fresh,
        truncate=False,
        standing=replace(
            standing,
            reached={stream: parts for stream, parts in reached.items() if active_of({stream: {}}) == prefix},
            unread=_unread(behind, left, standing.unread),
        ),
        states=states,
    )
    cluster: dict[str, Any] = {
        "from": leaving.active, "to": to,
        "left": {stream: {str(n): offset for n, offset in parts.items()} for stream, parts in behind.items()},
    }  # fmt: skip
    notes = [] if left is not None else [
        f"{leaving.active} does not answer: what it has beyond what runs saw is not counted as open; it is read when "
        "the mirror brings it, or after a failover back"
    ]  # fmt: skip
    return replace(found, route=now.route, cluster=cluster, notes=(*found.notes, *notes))


def _unread(behind: Positions, left: Sequence[TopicState] | None, seen: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return what the cluster that is left had and no run read."""
    ends: dict[Key, int] = {}
    for span in seen:
        ends[span.topic, span.partition] = max(span.end, ends.get((span.topic, span.partition), 0))
    starts: dict[Key, int] = {}
    for state in left or ():
        for number, there in state.partitions.items():
            ends[state.topic, number] = max(there.end, ends.get((state.topic, number), 0))
            starts[state.topic, number] = there.start
    found = []
    for (stream, number), end in sorted(ends.items()):
        # of a partition that was never read, what is retained
        start = behind.get(stream, {}).get(number, starts.get((stream, number), end))
        if end > start:
            found.append(OffsetRange(stream, number, start, end))
    return found
