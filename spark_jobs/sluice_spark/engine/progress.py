"""Logs the progress of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sluice.ranges import Counts, OffsetRange, Positions, RangeAccount, ranges_between
from sluice_spark.engine.logs import logger

__all__ = ["Progress"]


class Progress:
    """Logs each batch, and how many offsets remain up to the log ends at planning time."""

    def __init__(self, target: Positions, positions: Positions) -> None:
        self._target = target
        self._positions: Positions = {t: dict(p) for t, p in positions.items()}
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
        remaining = sum(map(len, ranges_between(self._positions, self._target)))
        counts = sum((a.counts for a in accounts), Counts())
        split = ", ".join(f"{n:,} {k}" for k, n in counts.as_dict().items() if n and k != "planned") or "nothing"
        logger.info(
            "batch %d: %s; %.1f s, %s records/s; %s offsets remain",
            batch,
            split,
            seconds,
            f"{round((counts.planned - counts.absent) / max(seconds, 1e-9)):,}",
            f"{remaining:,}",
        )
