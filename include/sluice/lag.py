"""How far a pipeline is behind the broker. Pure: positions, log starts and ends in; lag out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sluice.kafka.cluster import TopicState
from sluice.ranges import Positions

__all__ = ["Backlog", "PartitionLag", "measure"]


@dataclass(frozen=True)
class PartitionLag:
    """One partition, in offsets.

    ``records`` counts what can still be read, ``lost`` what retention removed before it was read, and ``beyond``
    how far the position lies past the end (the topic was recreated or truncated). Offsets are an upper bound of
    records: transaction markers and compaction leave gaps.
    """

    topic: str
    partition: int
    position: int
    start: int
    end: int

    @property
    def records(self) -> int:
        """Readable offsets that no run has read."""
        return max(0, self.end - max(self.position, self.start))

    @property
    def lost(self) -> int:
        """Offsets below the log start that no run has read."""
        return max(0, min(self.start, self.end) - self.position)

    @property
    def beyond(self) -> int:
        """Offsets by which the position is past the end."""
        return max(0, self.position - self.end)


@dataclass(frozen=True)
class Backlog:
    """The lag of one pipeline, per partition."""

    pipeline: str
    partitions: tuple[PartitionLag, ...]

    @property
    def records(self) -> int:
        """Readable offsets that no run has read, over all partitions."""
        return sum(p.records for p in self.partitions)

    @property
    def needs_a_run(self) -> bool:
        """Whether something is amiss that only a run can report with its typed error."""
        return any(p.lost or p.beyond for p in self.partitions)

    def is_over(self, max_records: int) -> bool:
        """Tell whether a run is worth starting: more than ``max_records`` are waiting, or something is amiss."""
        return self.records > max_records or self.needs_a_run

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        parts = [{**asdict(p), "lag": p.records, "lost": p.lost} for p in self.partitions]
        return {"pipeline": self.pipeline, "lag": self.records, "partitions": parts}


def measure(
    pipeline: str,
    positions: Positions | None,
    states: Sequence[TopicState],
    starting_offsets: Literal["earliest", "latest"] = "earliest",
) -> Backlog:
    """Compare committed positions with the broker's answer.

    Parameters
    ----------
    positions
        The checkpoint's committed positions; None before the first run. A partition that they do not know is counted
        from where the next run would start on it: its log start, or its end for ``latest`` before the first run.
    """
    partitions = []
    for state in states:
        known = (positions or {}).get(state.topic, {})
        for number, now in sorted(state.partitions.items()):
            fresh = now.end if starting_offsets == "latest" and positions is None else now.start
            partitions.append(PartitionLag(state.topic, number, known.get(number, fresh), now.start, now.end))
    return Backlog(pipeline, tuple(partitions))
