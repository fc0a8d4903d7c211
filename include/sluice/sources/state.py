"""The state of topics and partitions, as a broker reports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.errors import SluiceError
from sluice.ranges import Positions

__all__ = [
    "FirstUnread",
    "Key",
    "PartitionState",
    "TopicState",
    "ends",
    "ids_of",
    "is_another",
    "is_elsewhere",
    "joined_ids",
    "leaders",
    "starts",
    "stream_id",
]

Key = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class PartitionState:
    """Log start and end of one partition. The end is exclusive; under ``read_committed`` it is the last stable offset.

    ``high`` is the high watermark, if it was requested beside the last stable offset. ``epoch`` identifies the history
    to which the records below the end belong: for Kafka the leader epoch, where no record below the end has a later
    one; for a queue the id or the time of its last message.
    """

    start: int
    end: int
    high: int | None = field(default=None, compare=False)
    epoch: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TopicState:
    """One topic as the broker sees it now.

    ``topic_id`` says which stream it is, wherever the name leads: :func:`stream_id` of the cluster's id and the topic's
    own, which changes when the topic is deleted and recreated. Offsets of two ids have nothing to do with each other.

    ``errors`` says why there is no answer for single partitions, ``error`` why there is none for the topic. Both are
    empty in the result of :meth:`Measurable.snapshot <sluice.sources.measurable.Measurable.snapshot>`.
    """

    topic: str
    topic_id: str
    partitions: dict[int, PartitionState]
    errors: dict[int, SluiceError] = field(default_factory=dict)
    error: SluiceError | None = None

    def is_another(self, known_id: str | None) -> bool:
        """Tell whether this is another topic than the one that had this id: see :func:`is_another`."""
        return is_another(known_id, self.topic_id)


AHEAD = 60.0
"""Seconds by which clocks may differ."""


@dataclass(frozen=True)
class FirstUnread:
    """The first record at or after a position that a run would read.

    ``time`` is its Kafka timestamp in seconds since 1970 (UTC); ``clock`` is ``CreateTime`` (set by the producer) or
    ``LogAppendTime`` (set by the broker). ``time`` is None if there are only markers and gaps up to the end. ``others``
    are the times of records behind it, where they were asked for.
    """

    time: float | None
    clock: str | None = None
    others: tuple[float, ...] = ()

    def is_ahead(self, now: float) -> bool:
        """Return whether its producer's clock was ahead of this time by more than :data:`AHEAD`."""
        return self.time is not None and self.time > now + AHEAD


def stream_id(source: str | None, own: str | None) -> str:
    """Return the id of a stream: that of its source (a Kafka cluster, a database), and its own there.

    Either may be unknown.
    """
    return f"{source}/{own or ''}" if source else own or ""


def is_another(known: str | None, now: str | None) -> bool:
    """Tell whether two ids are of two streams. What one of them does not know tells nothing."""
    (source, _, own), (source_now, _, own_now) = ((text or "").rpartition("/") for text in (known, now))
    return bool(source and source_now and source != source_now) or bool(own and own_now and own != own_now)


def is_elsewhere(known: str | None, now: str | None) -> bool:
    """Tell whether two ids are of two sources: two clusters, say."""
    source, source_now = ((text or "").rpartition("/")[0] for text in (known, now))
    return bool(source and source_now) and source != source_now


def ids_of(states: Iterable[TopicState]) -> dict[str, str]:
    """Return the topic ids that the broker reported, by topic."""
    return {s.topic: s.topic_id for s in states if s.topic_id}


def joined_ids(known: Mapping[str, str], states: Iterable[TopicState]) -> dict[str, str]:
    """Return the known ids of streams, completed by what is seen now of the same streams, and of new ones.

    A stream that was recreated is another one: its known id stays.
    """
    found = dict(known)
    for topic, now in ids_of(states).items():
        if not is_another(known.get(topic), now):
            (source, _, own), (source_now, _, own_now) = known.get(topic, "").rpartition("/"), now.rpartition("/")
            found[topic] = stream_id(source or source_now, own or own_now)
    return found


def leaders(states: Iterable[TopicState]) -> list[tuple[str, int, int, int]]:
    """Return topic, partition, leader epoch and end of each partition whose leader epoch is known."""
    return [
        (s.topic, p, state.epoch, state.end)
        for s in states
        for p, state in sorted(s.partitions.items())
        if state.epoch is not None
    ]


def starts(states: Iterable[TopicState]) -> Positions:
    """Return the log starts, by topic and partition."""
    return {s.topic: {p: state.start for p, state in s.partitions.items()} for s in states}


def ends(states: Iterable[TopicState]) -> Positions:
    """Return the log ends, by topic and partition."""
    return {s.topic: {p: state.end for p, state in s.partitions.items()} for s in states}
