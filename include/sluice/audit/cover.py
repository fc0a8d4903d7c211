"""The union of very many ranges of one partition, for fast queries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sluice.ranges import OffsetRange

__all__ = ["Cover"]


class Cover:
    """A union of ranges of one partition; the ranges may overlap.

    Attributes
    ----------
    starts, ends
        The union as disjoint, ascending ranges.
    """

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        pairs = sorted((r.start, r.end) for r in ranges if len(r))
        self.starts: Any = np.array([a for a, _ in pairs], dtype=np.int64)
        self.ends: Any = np.array([b for _, b in pairs], dtype=np.int64)
        if pairs:
            reach = np.maximum.accumulate(self.ends)
            fresh = np.append(True, self.starts[1:] > reach[:-1])
            self.starts, self.ends = self.starts[fresh], reach[np.append(fresh[1:], True)]
        self._before = np.append(0, np.cumsum(self.ends - self.starts))

    def length(self, start: int, end: int) -> int:
        """Return how many of the offsets ``[start, end)`` are in the union."""
        return self._below(end) - self._below(start) if end > start and len(self.starts) else 0

    def _below(self, offset: int) -> int:
        number = int(np.searchsorted(self.starts, offset))
        return int(self._before[number]) - (max(0, int(self.ends[number - 1]) - offset) if number else 0)

    def cut(self, span: OffsetRange) -> list[OffsetRange]:
        """Return the parts of the union within a range, in order."""
        first = int(np.searchsorted(self.ends, span.start, side="right"))
        last = int(np.searchsorted(self.starts, span.end))
        return [
            OffsetRange(
                span.topic, span.partition, max(span.start, int(self.starts[i])), min(span.end, int(self.ends[i]))
            )
            for i in range(first, last)
        ]

    def holes(self, span: OffsetRange) -> list[OffsetRange]:
        """Return the parts of a range that are not in the union, in order."""
        points = [span.start, *(p for part in self.cut(span) for p in (part.start, part.end)), span.end]
        pairs = zip(points[::2], points[1::2], strict=True)
        return [OffsetRange(span.topic, span.partition, a, b) for a, b in pairs if a < b]
