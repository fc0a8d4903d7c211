"""Offset ranges: the unit of planning, accounting and comparing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any

__all__ = [
    "Counts",
    "LostRange",
    "OffsetRange",
    "Positions",
    "RangeAccount",
    "Times",
    "describe",
    "divided",
    "joined",
    "overlaps",
    "ranges_between",
    "runs_of",
    "subtract",
]

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

    @classmethod
    def parse(cls, text: str) -> OffsetRange:
        """Read ``TOPIC:PARTITION:START-END``.

        Raises
        ------
        ValueError
            If the text has another form.
        """
        try:
            topic, partition, span = text.rsplit(":", 2)
            start, end = span.split("-")
            if int(end) >= 1 << 63:
                raise ValueError
            return cls(topic, int(partition), int(start), int(end))
        except ValueError:
            raise ValueError(f"{text!r} is not a range: write TOPIC:PARTITION:START-END, END exclusive") from None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> OffsetRange:
        """Return the range of a mapping with its four fields, such as a row of the ledger; it may have others."""
        return cls(fields["topic"], int(fields["partition"]), int(fields["start"]), int(fields["end"]))

    def as_list(self) -> list[Any]:
        """Return ``[topic, partition, start, end]``, the form of events, commit metadata and XCom."""
        return [self.topic, self.partition, self.start, self.end]

    def cut(self, other: OffsetRange) -> OffsetRange | None:
        """Return the intersection with another range; None if it is empty."""
        if (self.topic, self.partition) != (other.topic, other.partition):
            return None
        start, end = max(self.start, other.start), min(self.end, other.end)
        return OffsetRange(self.topic, self.partition, start, end) if start < end else None


@dataclass(frozen=True)
class Counts:
    """The number of offsets with each outcome. ``planned`` is their sum: offsets are conserved."""

    written: int = 0
    filtered: int = 0
    quarantined: int = 0
    absent: int = 0
    lost: int = 0

    @property
    def planned(self) -> int:
        """The number of all offsets."""
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


@dataclass(frozen=True, order=True)
class Times:
    """The earliest and latest record time of a range, in milliseconds since 1970 (UTC), both inclusive.

    ``first`` is greater than ``last`` if the range has no readable record.
    """

    range: OffsetRange
    first: int
    last: int

    @classmethod
    def none(cls, span: OffsetRange) -> Times:
        """Return the times of a range without a readable record."""
        return cls(span, 1 << 62, -(1 << 62))

    def meets(self, start: int, end: int) -> bool:
        """Whether the time of a record in the range may be in ``[start, end)``, in milliseconds since 1970."""
        return self.first < end and self.last >= start


@dataclass(frozen=True)
class RangeAccount:
    """One range and how its offsets split into the five counts.

    Attributes
    ----------
    times
        The record times that were observed; parts that were not read are missing. They do not affect equality.

    Raises
    ------
    ValueError
        If the counts do not add up to the length of the range, or one is negative.
    """

    range: OffsetRange
    counts: Counts
    times: tuple[Times, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        parts = asdict(self.counts)
        if min(parts.values()) < 0 or self.counts.planned != len(self.range):
            raise ValueError(f"the account of {self.range} does not balance: {len(self.range)} planned, {parts}")

    def as_dict(self) -> dict[str, Any]:
        """Return a flat JSON-ready form; :meth:`from_dict` reads it."""
        times = [[t.range.start, t.range.end, t.first, t.last] for t in self.times]
        return {**asdict(self.range), **asdict(self.counts), **({"times": times} if times else {})}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeAccount:
        """Read what :meth:`as_dict` wrote; earlier versions wrote no times."""
        span = OffsetRange.of(data)
        return cls(
            span,
            Counts(**{k: int(data[k]) for k in ("written", "filtered", "quarantined", "absent", "lost")}),
            tuple(
                Times(OffsetRange(span.topic, span.partition, start, end), first, last)
                for start, end, first, last in data.get("times") or ()
            ),
        )


@dataclass(frozen=True)
class LostRange:
    """A range that was skipped, the reason, and one of its records if one could be read."""

    range: OffsetRange
    reason: str
    sample: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return a flat JSON-ready form; :meth:`from_dict` reads it."""
        return {**asdict(self.range), "reason": self.reason, "sample": dict(self.sample) if self.sample else None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LostRange:
        """Read what :meth:`as_dict` wrote."""
        return cls(OffsetRange.of(data), data["reason"], data.get("sample"))


class _ByPartition:
    """An index of ranges, which may overlap each other, by partition and offset."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._here: dict[tuple[str, int], tuple[list[OffsetRange], list[int], list[int]]] = {}
        parts: dict[tuple[str, int], list[OffsetRange]] = {}
        for item in ranges:
            if len(item):
                parts.setdefault((item.topic, item.partition), []).append(item)
        for key, items in parts.items():
            items.sort()
            reach = list(accumulate((item.end for item in items), max))
            self._here[key] = (items, [item.start for item in items], reach)

    def near(self, other: OffsetRange) -> list[OffsetRange]:
        """Return, in order, every range that overlaps ``other``, and possibly a few that do not."""
        items, starts, reach = self._here.get((other.topic, other.partition), ([], [], []))
        return items[bisect_right(reach, other.start) : bisect_left(starts, other.end)] if len(other) else []


def subtract(ranges: Iterable[OffsetRange], holes: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return ``ranges`` without the offsets of ``holes``, in order."""
    found = _ByPartition(holes)
    rest: list[OffsetRange] = []
    for item in ranges:
        start = item.start
        for hole in found.near(item):
            if start < hole.start:
                rest.append(OffsetRange(item.topic, item.partition, start, hole.start))
            start = max(start, hole.end)
        if start < item.end or not len(item):
            rest.append(OffsetRange(item.topic, item.partition, start, item.end))
    return sorted(rest)


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges in order, those that follow on each other put together."""
    found: list[OffsetRange] = []
    for now in sorted(ranges):
        last = found[-1] if found else None
        if last and (last.topic, last.partition, last.end) == (now.topic, now.partition, now.start):
            found[-1] = OffsetRange(last.topic, last.partition, last.start, now.end)
        else:
            found.append(now)
    return found


def overlaps(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts that ``ranges`` and ``others`` have in common, in order."""
    found = _ByPartition(others)
    return sorted(common for item in ranges for other in found.near(item) if (common := item.cut(other)))


def divided(ranges: Iterable[OffsetRange], size: int) -> list[list[OffsetRange]]:
    """Divide ranges into shares of so many offsets, in order; only the last may have fewer."""
    found: list[list[OffsetRange]] = [[]]
    room = size
    for item in ranges:
        start = item.start
        while start < item.end:
            if not room:
                found.append([])
                room = size
            end = min(item.end, start + room)
            found[-1].append(replace(item, start=start, end=end))
            room -= end - start
            start = end
    return [share for share in found if share]


def runs_of(topic: str, partition: int, offsets: Iterable[int]) -> list[OffsetRange]:
    """Return ascending offsets as ranges, one for each sequence without a gap."""
    ranges: list[OffsetRange] = []
    start = end = None
    for offset in offsets:
        if end is not None and offset == end:
            end += 1
            continue
        if start is not None and end is not None:
            ranges.append(OffsetRange(topic, partition, start, end))
        start, end = offset, offset + 1
    if start is not None and end is not None:
        ranges.append(OffsetRange(topic, partition, start, end))
    return ranges


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the non-empty ranges between two positions.

    A partition that is missing in ``start`` (it was added since) begins at 0, as in Spark's Kafka source.
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
