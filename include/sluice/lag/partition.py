"""The lag of one partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.lag.status import Status
from sluice.sources.state import Key

__all__ = ["PartitionLag", "rounded"]


@dataclass(frozen=True)
class PartitionLag:
    """The lag of one partition, in offsets, seconds and share of the retention time.

    The number of offsets is an upper bound of records: transaction markers and compaction leave gaps.

    Parameters
    ----------
    position
        Next offset to read; None if no run has read the partition.
    start, end
        Start and end of the log at the source's isolation level; None if the broker did not answer.
    age
        Age of the first unread record in seconds; 0 if nothing waits, None if unknown.
    share
        ``age`` as a share of the topic's retention time; None also if that is unlimited.
    fresh
        Where the next run starts if there is no position; None means at ``start``.
    late
        Whether an unread record older than the age limit exists, if the broker was asked for this instead of ``age``.
    high
        The high watermark, if ``end`` is the last stable offset.
    signs
        Further statuses that were found.
    error
        Why something is unknown.
    """

    topic: str
    partition: int
    position: int | None
    start: int | None
    end: int | None
    age: float | None = None
    share: float | None = None
    fresh: int | None = None
    late: bool | None = None
    high: int | None = None
    clock: str | None = None
    signs: frozenset[Status] = frozenset()
    error: str | None = None

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def next(self) -> int | None:
        """The offset at which the next run starts, if it is known."""
        if self.position is not None:
            return self.position
        return self.start if self.fresh is None else self.fresh

    @property
    def recreated(self) -> bool:
        """Whether the position belongs to a former topic of this name, so that no lag can be computed."""
        return Status.RECREATED in self.signs or bool(self.beyond)

    @property
    def records(self) -> int | None:
        """Readable offsets that no run has read."""
        if self.recreated or self.next is None or self.start is None or self.end is None:
            return None
        return max(0, self.end - max(self.next, self.start))

    @property
    def lost(self) -> int | None:
        """Offsets that the broker removed before any run read them."""
        if self.recreated or self.next is None or self.start is None or self.end is None:
            return None
        return max(0, min(self.start, self.end) - self.next)

    @property
    def beyond(self) -> int | None:
        """How many offsets the position is beyond the end, including those after an open transaction."""
        if self.next is None or self.end is None:
            return None
        return max(0, self.next - max(self.end, self.high or 0))

    @property
    def pending(self) -> int | None:
        """Offsets after an open transaction: they are in the log but cannot be read yet."""
        return None if self.high is None or self.end is None else max(0, self.high - self.end)

    @property
    def status(self) -> Status:
        """The partition's worst status."""
        found = set(self.signs)
        if self.position is None:
            found.add(Status.NEW)
        elif self.records:
            found.add(Status.BACKLOG)
        if self.recreated:
            found.add(Status.RECREATED)
        elif self.records is None:
            found.add(Status.UNKNOWN)
        if self.lost:
            found.add(Status.LOST)
        return Status.worst(found)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "topic": self.topic, "partition": self.partition, "status": self.status.value, "position": self.position,
            "start": self.start, "end": self.end, "lag": self.records, "age": rounded(self.age),
            "share": rounded(self.share, 4), "lost": self.lost, "beyond": self.beyond, "pending": self.pending,
            "clock": self.clock, "error": self.error,
        }  # fmt: skip


def rounded(value: float | None, digits: int = 3) -> float | None:
    """Round a value unless it is None."""
    return None if value is None else round(value, digits)
