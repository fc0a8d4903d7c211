"""Finds where lost ranges can still be read. Pure, except that it verifies the log's checksums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.ranges import OffsetRange, overlaps, subtract
from sluice.sources.state import TopicState
from sluice.wal import Segment, WriteAheadLog

__all__ = ["Located", "locate"]


@dataclass(frozen=True)
class Located:
    """Lost ranges by where they can be read now; together they are all requested ranges."""

    log: tuple[OffsetRange, ...]
    segments: tuple[Segment, ...]
    kafka: tuple[OffsetRange, ...]
    nowhere: tuple[OffsetRange, ...]

    @property
    def found(self) -> list[OffsetRange]:
        """The ranges that can be redriven."""
        return sorted((*self.log, *self.kafka))


def locate(
    wanted: Sequence[OffsetRange],
    log: WriteAheadLog,
    states: Sequence[TopicState],
    known_ids: Mapping[str, str],
) -> Located:
    """Return where each range is: in the write-ahead log, else in Kafka, else nowhere.

    Parameters
    ----------
    states
        The topics as the broker sees them; empty if it does not answer.
    known_ids
        Topic ids that the last run saw. A topic with another id was recreated: its offsets are other records.

    Raises
    ------
    SinkError
        If the log cannot be read.
    """
    log.refresh()
    near = log.segments(wanted)
    damaged = {d.segment.path for d in log.check(near, pages=True)}
    segments = tuple(s for s in near if s.path not in damaged)
    rest = subtract(wanted, [s.range for s in segments])
    in_log = subtract(wanted, rest)  # after a reset, segments of two epochs may have the same offsets
    on_broker = [
        OffsetRange(state.topic, partition, now.start, now.end)
        for state in states
        if not state.is_another(known_ids.get(state.topic))
        for partition, now in state.partitions.items()
    ]
    in_kafka = overlaps(rest, on_broker)
    return Located(tuple(in_log), segments, tuple(in_kafka), tuple(subtract(rest, in_kafka)))
