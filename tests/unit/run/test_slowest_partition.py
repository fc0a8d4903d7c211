"""The slowest partition that is not idle holds the watermark; the same batches give the same answer at any time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from sluice.ledger import PartitionTime
from sluice.run.slowest_partition import slowest

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([], None),
        ([(0, 100, 5)], (0, 100)),
        ([(0, 100, 5), (1, 90, 5)], (1, 90)),
        # what a partition reached counts, not its last record
        ([(0, 100, 6), (1, 80, 6), (1, 99, 5)], (1, 99)),
        # an hour since the first batch without it: idle; a little less: not
        ([(0, 100, 6 + HOUR), (0, 99, 6), (1, 90, 5)], (0, 100)),
        ([(0, 100, 5 + HOUR), (0, 99, 6), (1, 90, 5)], (1, 90)),
        # the pipeline has rested for days, or reads more rarely: one batch without it says nothing
        ([(0, 100, 80 * HOUR), (1, 90, 5)], (1, 90)),
        ([(0, 100, 80 * HOUR), (0, 99, 79 * HOUR), (0, 98, 6), (1, 90, 5)], (0, 100)),
        # the clock of one driver was days behind
        ([(0, 100, 99 * HOUR), (0, 99, 5), (1, 90, 99 * HOUR - 5)], (1, 90)),
    ],
)
def test_slowest_partition_is_found(batches: Sequence[tuple[int, int, int]], found: tuple[int, int] | None) -> None:
    times = [PartitionTime("t", partition, latest, at) for partition, latest, at in batches]
    got = slowest(times, timedelta(hours=1))
    assert (None if got is None else (got.partition, got.latest)) == found


def test_slowest_partition_is_found_without_older_batches() -> None:
    def times() -> object:
        yield PartitionTime("t", 0, 100, 2 * HOUR)
        yield PartitionTime("t", 0, 99, HOUR)
        yield PartitionTime("t", 1, 90, HOUR - 1)
        raise AssertionError("this batch is older than any that counts")

    got = slowest(times(), timedelta(hours=1))  # type: ignore[arg-type]
    assert got == PartitionTime("t", 0, 100, 2 * HOUR)
