"""The size of a batch by the pace of what was done before."""

from __future__ import annotations

import pytest

from sluice_spark.batch.pace import fitting


@pytest.mark.parametrize(
    ("done", "size"),
    [
        ([], 5_000_000),
        ([(10_000, 8.0)], 5_000_000),
        ([(3_000_000, 60.0), (50, 20.0)], 1_500_000),
        ([(50, 600.0), (3_000_000, 60.0)], 1_500_000),
        ([(90_000_000, 60.0)], 5_000_000),
        ([(100, 3600.0)], 1000),
    ],
)
def test_the_largest_says_the_pace(done: list[tuple[int, float]], size: int) -> None:
    assert fitting(done, 30.0, 5_000_000) == size
