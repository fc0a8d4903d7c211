"""Sources that are read by ranges: the division into batches and tasks, and the rows of ``rate``."""

from __future__ import annotations

import json
from typing import Any, cast
from unittest import mock

import pytest

from sluice.ranges import OffsetRange, Positions
from sluice.sources.rate.source import Clockwork
from sluice_spark.sources.inputs import RECORDS
from sluice_spark.sources.ranged import Plan, next_cut
from sluice_spark.sources.rate import RateInput

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
def test_ranged_source_plans_the_next_batch_that_was_cut(start: Positions, end: Positions) -> None:
    assert next_cut(start, CUTS) == end
    assert next_cut(start, []) == start


def test_ranged_source_gives_a_task_ranges_of_one_partition() -> None:
    places = (("t", 0, 0, 6), ("t", 1, 0, 1), ("u", 0, 3, 4), ("t", 0, 9, 10))
    ranges, nowhere = [OffsetRange(*place) for place in places], cast(Any, mock.Mock())
    shares = Plan("p", nowhere, 2).shares(ranges)
    assert [share.ranges for share in shares] == [(ranges[0], ranges[3]), (ranges[1],), (ranges[2],)]
    halved = Plan("p", nowhere, 2, tasks=2).shares(ranges)
    assert [list(map(len, share.ranges)) for share in halved] == [[4], [2, 1], [1], [1]]


def test_rate_rows_follow_from_their_offsets() -> None:
    clockwork = Clockwork("x", 1_700_000_000_000_000, 3, 2)
    with RateInput(clockwork).opened() as reader:
        chunks = list(reader.read(OffsetRange("rate", 1, 49_999, 100_002)))
    assert [len(c.offsets) for c in chunks] == [50_000, 3]
    first = json.loads(chunks[0].values()[0] or b"")
    assert first == {"value": 99_999, "timestamp": "2023-11-15T07:28:52.666666Z"}
    table = chunks[1].records()
    assert table.schema == RECORDS
    assert table.column("value").to_pylist() == chunks[1].values()
    assert table.column("offset").to_pylist() == [99_999, 100_000, 100_001]
    assert chunks[1].chosen([0, 2]).values() == [chunks[1].values()[0], chunks[1].values()[2]]
    assert chunks[1].keys() == [None] * 3
    assert chunks[1].times.tolist() == [clockwork.time(n) // 1000 for n in (99_999, 100_000, 100_001)]
