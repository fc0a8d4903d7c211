"""The state of topics and partitions, as a broker reports it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.errors import SluiceError
from sluice.ranges import Positions

__all__ = ["FirstUnread", "Key", "PartitionState", "TopicState", "ends", "starts"]

Key = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class PartitionState:
    """Log start and end of one partition. The end is exclusive; under ``read_committed`` it is the last stable offset.

    ``high`` is the high watermark, if it was requested beside the last stable offset.
    """

    start: int
    end: int
    high: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TopicState:
    """One topic as the broker sees it now. ``topic_id`` changes when the topic is deleted and recreated.

    ``errors`` says why there is no answer for single partitions, ``error`` why there is none for the topic. Both are
    empty in the result of :meth:`Cluster.snapshot <sluice.sources.kafka.Cluster.snapshot>`.
    """

    topic: str
    topic_id: str
    partitions: dict[int, PartitionState]
    errors: dict[int, SluiceError] = field(default_factory=dict)
    error: SluiceError | None = None

    def is_another(self, known_id: str | None) -> bool:
        """Return whether the topic was recreated since it had ``known_id``; False if either id is unknown."""
        return bool(known_id and self.topic_id) and known_id != self.topic_id


@dataclass(frozen=True)
class FirstUnread:
    """The first record at or after a position that a run would read.

    ``time`` is its Kafka timestamp in seconds since 1970 (UTC); ``clock`` is ``CreateTime`` (set by the producer) or
    ``LogAppendTime`` (set by the broker). ``time`` is None if there are only markers and gaps up to the end.
    """

    time: float | None
    clock: str | None = None


def ids_of(states: Iterable[TopicState]) -> dict[str, str]:
    """Return the topic ids that the broker reported, by topic."""
    return {s.topic: s.topic_id for s in states if s.topic_id}


def starts(states: Iterable[TopicState]) -> Positions:
    """Return the log starts, by topic and partition."""
    return {s.topic: {p: state.start for p, state in s.partitions.items()} for s in states}


def ends(states: Iterable[TopicState]) -> Positions:
    """Return the log ends, by topic and partition."""
    return {s.topic: {p: state.end for p, state in s.partitions.items()} for s in states}
