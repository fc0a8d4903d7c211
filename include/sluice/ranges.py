"""Offset ranges: the unit in which everything is planned, accounted and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Counts", "OffsetRange", "Positions", "RangeAccount", "describe", "ranges_between"]

Positions = dict[str, dict[int, int]]
"""topic → partition → next offset to read."""


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition; ``end`` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.end < self.start:
            raise ValueError(f"not a range: {self}")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class Counts:
    """How many offsets went where. ``planned`` is their sum: the one law."""

    written: int = 0
    filtered: int = 0
    quarantined: int = 0
    absent: int = 0
    lost: int = 0

    @property
    def planned(self) -> int:
        """Every offset accounted for."""
        return self.written + self.filtered + self.quarantined + self.absent + self.lost

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.written + other.written,
            self.filtered + other.filtered,
            self.quarantined + other.quarantined,
            self.absent + other.absent,
            self.lost + other.lost,
        )

    def as_dict(self) -> dict[str, int]:
        """Return ``planned`` and its five parts."""
        return {"planned": self.planned, **asdict(self)}


@dataclass(frozen=True)
class RangeAccount:
    """One range with its split.

    Raises
    ------
    ValueError
        When the parts do not add up to the length of the range, or one is negative.
    """

    range: OffsetRange
    counts: Counts

    def __post_init__(self) -> None:
        parts = asdict(self.counts)
        if min(parts.values()) < 0 or self.counts.planned != len(self.range):
            raise ValueError(f"the account of {self.range} does not balance: {len(self.range)} planned, {parts}")

    def as_dict(self) -> dict[str, Any]:
        """Return a flat JSON-ready form; :meth:`from_dict` reads it."""
        return {**asdict(self.range), **asdict(self.counts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeAccount:
        """Read what :meth:`as_dict` wrote."""
        return cls(
            OffsetRange(data["topic"], int(data["partition"]), int(data["start"]), int(data["end"])),
            Counts(**{k: int(data[k]) for k in ("written", "filtered", "quarantined", "absent", "lost")}),
        )


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the ranges that lead from one position to another, without the empty ones.

    A partition that ``start`` does not know (added since) begins at 0, as Spark's Kafka source reads it.
    """
    return [
        OffsetRange(topic, partition, start.get(topic, {}).get(partition, 0), stop)
        for topic, partitions in sorted(end.items())
        for partition, stop in sorted(partitions.items())
        if stop > start.get(topic, {}).get(partition, 0)
    ]


def describe(ranges: Iterable[OffsetRange], limit: int = 8) -> str:
    """Return the ranges as a readable list, cut after ``limit``."""
    items = sorted(ranges)
    shown = ", ".join(str(item) for item in items[:limit])
    return shown + (f" and {len(items) - limit} more" if len(items) > limit else "")
