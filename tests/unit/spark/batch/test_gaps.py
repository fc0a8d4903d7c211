"""Offsets without a record: absent, or removed before they were read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.errors import OffsetsGoneError
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_spark.batch.writer import BatchWriter

WRITER = cast(Any, SimpleNamespace(pipeline=SimpleNamespace(name="p")))
SPAN = OffsetRange("t", 0, 0, 5)


def explained(counts: Counts, *gone: OffsetRange) -> list[OffsetRange]:
    """Return what the source was asked for; it no longer has ``gone``."""
    asked = list[OffsetRange]()

    def missing(ranges: list[OffsetRange]) -> list[OffsetRange]:
        asked.extend(ranges)
        return list(gone) if ranges else []

    BatchWriter.explain_gaps(WRITER, [RangeAccount(SPAN, counts)], [SPAN], cast(Any, SimpleNamespace(missing=missing)))
    return asked


def test_gaps_are_absent_if_the_source_still_has_the_start_and_refused_if_not() -> None:
    assert explained(Counts(written=3, absent=2)) == [SPAN]
    with pytest.raises(OffsetsGoneError, match=r"t-0 \[0, 2\)"):
        explained(Counts(written=3, absent=2), OffsetRange("t", 0, 0, 2))
    assert explained(Counts(written=5), SPAN) == [], "nothing is asked without a gap"
