"""Compares a pipeline's position with what the broker has, before anything is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.errors import OffsetsGoneError, TopicRecreatedError
from sluice.kafka.cluster import TopicState
from sluice.ranges import OffsetRange, Positions, describe

__all__ = ["check"]

_CLEAN = "nothing was read or written now; what earlier runs wrote is in the sink, and the position stays where it was"


def check(
    pipeline: str,
    positions: Positions | None,
    states: Sequence[TopicState],
    known_ids: Mapping[str, str],
    open_ranges: Sequence[OffsetRange] = (),
) -> None:
    """Refuse a run that could not read what it must.

    Parameters
    ----------
    positions
        Committed positions; None before the first run, which starts wherever the broker starts.
    known_ids
        Topic ids that an earlier run saw.
    open_ranges
        Ranges of a batch that was planned and not committed: a run begins by reading exactly these.

    Raises
    ------
    TopicRecreatedError
        When a topic's id changed, a partition vanished, or a position or planned range lies beyond the end.
    OffsetsGoneError
        When offsets that are to be read lie below the log start; it names each range.
    """
    for state in states:
        known = known_ids.get(state.topic)
        if known and state.topic_id and known != state.topic_id:
            raise _recreated(pipeline, f"topic {state.topic!r} was deleted and made again (its id changed)")
    if positions is None and not open_ranges:
        return
    planned = {(r.topic, r.partition): r for r in open_ranges}
    gone: list[OffsetRange] = []
    for state in states:
        known_partitions = (positions or {}).get(state.topic, {})
        vanished = sorted(set(known_partitions) - set(state.partitions))
        if vanished:
            raise _recreated(pipeline, f"topic {state.topic!r} no longer has the partitions {vanished}")
        for partition, now in state.partitions.items():
            batch = planned.get((state.topic, partition))
            # a partition added since is read from its beginning
            position = batch.start if batch else known_partitions.get(partition, 0)
            furthest = batch.end if batch else position
            if furthest > now.end:
                raise _recreated(
                    pipeline, f"{state.topic}-{partition} ends at {now.end}, but offsets up to {furthest} were planned"
                )
            if position < now.start:
                gone.append(OffsetRange(state.topic, partition, position, now.start))
    if gone:
        total = sum(map(len, gone))
        raise OffsetsGoneError(
            f"pipeline {pipeline!r}: {total} planned offsets are gone from Kafka: {describe(gone)}",
            state=_CLEAN,
            next_step="strategy replay cannot go on without them. Strategies that would: wal, when the write-ahead log "
            "holds them; ignore_range or ignore_batch, which record them as lost and go on",
            ranges=gone,
        )


def _recreated(pipeline: str, what: str) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"pipeline {pipeline!r}: {what}",
        state=_CLEAN,
        next_step="if the topic was made anew, name the pipeline anew, or move its checkpoint and sink away",
    )
