"""Points at which drivers die, and cases that ``make chaos`` alone runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

__all__ = ["BATCH", "DIRECT", "LONG", "each", "long", "one_kill"]

LONG = pytest.mark.long
DIRECT = ("before-sink-commit", "sink-committed", "quarantine-committed", "batch-recorded")
"""Around the commit of a batch."""
BATCH = ("batch-started", "rows-staged", "quarantine-staged", *DIRECT)
"""In a batch."""


def long(*cases: Any) -> list[Any]:
    """Return the cases of a parametrized test, tuples or single values, marked as long."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=LONG) for case in cases]


def each(points: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return each strategy with each of its points."""
    return [(recovery, point) for recovery, found in points.items() for point in found]


def one_kill(*points: str) -> pytest.MarkDecorator:
    """Run a test without a kill, and among the long ones with a kill at each point, on both paths and by the log."""
    ways = (("replay", "auto"), ("replay", "spark"), ("wal", "auto"), ("hot", "auto"))
    killed = long(*((*way, point) for way in ways for point in points))
    return pytest.mark.parametrize(("recovery", "engine", "point"), [("replay", "auto", None), *killed])
