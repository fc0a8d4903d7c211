"""Logs the progress of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sluice.ranges import Counts, OffsetRange, Positions, RangeAccount, ranges_between
from sluice.text import length
from sluice_spark.engine.logs import logger

__all__ = ["Progress"]


class Progress:
    """Logs each batch, and how many offsets remain up to the log ends at planning time."""

    def __init__(self, target: Positions, positions: Positions) -> None:
        self._target = target
        self._positions: Positions = {t: dict(p) for t, p in positions.items()}
        self._total, self._spent = self._remaining(), 0.0
        self._began = time.monotonic()

    def begin(self, batch: int, ranges: Sequence[OffsetRange]) -> None:
        """Log the beginning of a batch."""
        self._began = time.monotonic()
        logger.info("batch %d: %s offsets in %d partitions", batch, f"{sum(map(len, ranges)):,}", len(ranges))

    def end(self, batch: int, ranges: Sequence[OffsetRange], accounts: Sequence[RangeAccount]) -> None:
        """Log the counts and speed of a batch, and how many offsets remain."""
        seconds = time.monotonic() - self._began
        for item in ranges:
            self._positions.setdefault(item.topic, {})[item.partition] = item.end
        self._spent += seconds
        counts = sum((a.counts for a in accounts), Counts())
        split = ", ".join(f"{n:,} {k}" for k, n in counts.as_dict().items() if n and k != "planned") or "nothing"
        logger.info(
            "batch %d: %s; %.1f s, %s records/s; %s",
            batch,
            split,
            seconds,
            f"{round((counts.planned - counts.absent) / max(seconds, 1e-9)):,}",
            self._left(),
        )

    def _left(self) -> str:
        remaining = self._remaining()
        done = self._total - remaining
        told = f"{remaining:,} offsets remain"
        if not remaining or done <= 0:
            return told
        return f"{told} ({done / self._total:.0%} done, about {length(max(1, self._spent / done * remaining))} to go)"

    def _remaining(self) -> int:
        return sum(map(len, ranges_between(self._positions, self._target)))
