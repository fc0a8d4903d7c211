"""Points at which drivers die, and cases that ``make chaos`` alone runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

__all__ = ["BATCH", "DIRECT", "LONG", "WAYS", "each", "long"]

LONG = pytest.mark.long
DIRECT = ("before-sink-commit", "sink-committed", "quarantine-committed", "batch-recorded")
"""Around the commit of a batch."""
BATCH = ("batch-started", "rows-staged", "quarantine-staged", *DIRECT)
"""In a batch."""
WAYS = (("replay", "auto"), ("replay", "spark"), ("wal", "auto"), ("hot", "auto"))
"""Strategies and engines by which a batch goes different ways."""


def long(*cases: Any) -> list[Any]:
    """Return the cases of a parametrized test, tuples or single values, marked as long."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=LONG) for case in cases]


def each(points: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return each strategy with each of its points."""
    return [(recovery, point) for recovery, found in points.items() for point in found]
