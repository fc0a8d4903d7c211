"""How large a batch may be so that it takes a certain time."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["fitting"]

_FEWEST = 1000
"""Minimum number of records, however slow earlier work was: smaller batches would only cost more."""


def fitting(done: Iterable[tuple[int, float]], seconds: float, most: int) -> int:
    """Return how many records fit into a time, by what was done before; pure.

    Parameters
    ----------
    done
        Numbers of records that were processed together, each with the seconds that it took.
    seconds
        The time in which the next ones should be processed.
    most
        The maximum number of records.

    Notes
    -----
    The pace is that of the largest number, because the newest one is often only the rest at the end of a run. A largest
    one that took less than half of the time shows no limit.
    """
    records, took = max(done, default=(0, 0.0))
    if took < seconds / 2:
        return most
    return min(most, max(_FEWEST, int(records / took * seconds)))
