"""How a stream over ranges is divided into batches."""

from __future__ import annotations

import pytest

from sluice.ranges import OffsetRange, Positions
from sluice_spark.sources.ranged import next_cut

CUTS = [
    [OffsetRange("t", 0, 0, 5)],
    [OffsetRange("t", 0, 5, 9), OffsetRange("t", 1, 2, 3)],
    [OffsetRange("u", 0, 0, 1)],
]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"t": {0: 0, 1: 2}}, {"t": {0: 5, 1: 2}}),
        ({"t": {0: 5, 1: 2}}, {"t": {0: 9, 1: 3}}),
        ({"t": {0: 5}}, {"t": {0: 9, 1: 3}}),
        ({"t": {0: 9, 1: 3}}, {"t": {0: 9, 1: 3}, "u": {0: 1}}),
        ({"t": {0: 9, 1: 3}, "u": {0: 1}}, {"t": {0: 9, 1: 3}, "u": {0: 1}}),
        ({}, {"t": {0: 5}}),
    ],
)
def test_a_batch_is_the_next_one_that_was_cut(start: Positions, end: Positions) -> None:
    assert next_cut(start, CUTS) == end
    assert next_cut(start, []) == start
