"""How a stream over ranges is divided into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluice.ranges import OffsetRange, Positions
from sluice_spark.sources.ranged import Plan, next_cut

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


class Nowhere:
    def input(self, ranges: Sequence[OffsetRange]) -> Any:
        return None


def test_a_task_reads_of_one_partition() -> None:
    ranges = [
        OffsetRange("t", 0, 0, 6),
        OffsetRange("t", 1, 0, 1),
        OffsetRange("u", 0, 3, 4),
        OffsetRange("t", 0, 9, 10),
    ]
    shares = Plan("p", Nowhere(), 2).shares(ranges)
    assert [share.ranges for share in shares] == [(ranges[0], ranges[3]), (ranges[1],), (ranges[2],)]
    halved = Plan("p", Nowhere(), 2, tasks=2).shares(ranges)
    assert [list(map(len, share.ranges)) for share in halved] == [[4], [2, 1], [1], [1]]
