"""Which offsets a sample reads."""

from __future__ import annotations

import pytest

from sluice.draft.sample import stretches
from sluice.sources.state import PartitionState


@pytest.mark.parametrize(
    ("sizes", "records", "read"),
    [
        ([10], 100, [(0, 0, 10)]),
        ([100], 10, [(0, 0, 5), (0, 95, 100)]),
        ([100], 1, [(0, 99, 100)]),
        ([0, 4, 100], 20, [(1, 0, 4), (2, 0, 8), (2, 92, 100)]),
        ([100, 100], 4, [(0, 0, 1), (0, 99, 100), (1, 0, 1), (1, 99, 100)]),
        ([0, 0], 4, []),
    ],
)
def test_the_oldest_and_the_newest_of_each_partition(
    sizes: list[int], records: int, read: list[tuple[int, int, int]]
) -> None:
    states = {n: PartitionState(0, size) for n, size in enumerate(sizes)}
    assert list(stretches(states, records)) == read


def test_what_the_log_has_lost_is_not_asked_for() -> None:
    assert list(stretches({0: PartitionState(90, 100)}, 50)) == [(0, 90, 100)]
