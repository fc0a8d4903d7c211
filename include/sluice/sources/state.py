"""What a broker says about topics and partitions."""

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
    """Log start and end (exclusive; the last stable offset under ``read_committed``) of one partition.

    ``high`` is the high watermark, where it was asked for beside the last stable offset.
    """

    start: int
    end: int
    high: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TopicState:
    """One topic as the broker sees it now. ``topic_id`` changes when the topic is deleted and recreated.

    ``errors`` holds why there is no answer for single partitions, ``error`` for the whole topic; both are empty in
    what :meth:`Cluster.snapshot <sluice.sources.kafka.Cluster.snapshot>` returns.
    """

    topic: str
    topic_id: str
    partitions: dict[int, PartitionState]
    errors: dict[int, SluiceError] = field(default_factory=dict)
    error: SluiceError | None = None

    def is_another(self, known_id: str | None) -> bool:
        """Tell whether this is another topic than the one that had this id; not while one of both is unknown."""
        return bool(known_id and self.topic_id) and known_id != self.topic_id


@dataclass(frozen=True)
class FirstUnread:
    """The first record at or after a position that a run would read.

    ``time`` is its Kafka time in seconds since 1970, by ``clock``: ``CreateTime`` (the producer's word) or
    ``LogAppendTime`` (the broker's). None: there is no record, only markers and gaps, up to the end.
    """

    time: float | None
    clock: str | None = None


def ids_of(states: Iterable[TopicState]) -> dict[str, str]:
    """Return the topics' ids, as far as the broker gave them."""
    return {s.topic: s.topic_id for s in states if s.topic_id}


def starts(states: Iterable[TopicState]) -> Positions:
    """Return the log starts."""
    return {s.topic: {p: state.start for p, state in s.partitions.items()} for s in states}


def ends(states: Iterable[TopicState]) -> Positions:
    """Return the log ends."""
    return {s.topic: {p: state.end for p, state in s.partitions.items()} for s in states}
