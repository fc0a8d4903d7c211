"""Batches that are read before they are planned: some are taken, some dropped, and nothing waits for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from unittest import mock

import pytest

from sluice.ranges import OffsetRange
from sluice_spark.arrow.read_ahead import Foreseen, ReadAhead


class Reading:
    """Reads batches ahead, and records its jobs and the results that were dropped."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.jobs: list[list[str]] = []
        self.dropped: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.error = error
        self.session = mock.Mock()
        self.ahead = ReadAhead(self.session, self.read, self.dropped.append)

    def read(self, batches: Sequence[Foreseen]) -> dict[str, str]:
        self.jobs.append([name for name, _ in batches])
        assert self.may_end.wait(30)
        if self.error:
            raise self.error
        return {name: f"read {name}" for name, _ in batches}

    @property
    def names(self) -> list[str]:
        return [name for job in self.jobs for name in job]

    def take(self, n: int, of: int | None = None) -> str | None:
        """Take batch ``n``, with the ranges of batch ``of``."""
        return self.ahead.take(str(n), spans(n if of is None else of))

    def go_on(self, n: int, last: int = 30, size: int = 100_000, *, settle: bool = False) -> None:
        """Go on after batch ``n``; wait until nothing is being read."""
        self.ahead.go_on([(str(k), spans(k, size)) for k in range(n + 1, last + 1)])
        for thread in threading.enumerate():
            if settle and thread.name == "sluice-read-ahead":
                thread.join(30)


def spans(n: int, size: int = 100_000) -> tuple[OffsetRange, ...]:
    """Return the ranges of batch ``n``."""
    return (OffsetRange("t", 0, n * size, (n + 1) * size),)


@pytest.mark.parametrize(
    ("last", "sizes"),
    [(1, [1]), (5, [2, 2, 1]), (30, [2, 4, 8, 8, 4, 2, 2]), (90, [2, 4, 8, 16, 20, 20, 10, 5, 2, 2, 1])],
)
def test_read_ahead_windows_grow_then_shrink_and_have_each_batch_once(last: int, sizes: list[int]) -> None:
    reading = Reading()
    for n in range(last + 1):
        assert reading.take(n) == (f"read {n}" if n else None)
        reading.go_on(n, last, settle=True)
    assert [len(job) for job in reading.jobs] == sizes
    assert reading.names == [str(n) for n in range(1, last + 1)]
    assert reading.dropped == []
    reading.ahead.close()
    reading.session.interruptTag.assert_not_called()


def test_read_ahead_holds_at_most_two_windows_and_waits_for_no_second_one() -> None:
    reading = Reading()
    reading.go_on(0, settle=True)
    reading.may_end.clear()
    reading.go_on(0)
    reading.go_on(0)
    assert reading.take(1) == "read 1"
    reading.go_on(1)
    reading.may_end.set()
    reading.go_on(1, settle=True)
    assert len(reading.jobs) == 2


@pytest.mark.parametrize(("size", "count"), [(5_000_000, 1), (10, 64), (1, 64)])
def test_read_ahead_reads_a_large_batch_alone_and_small_ones_in_portions(size: int, count: int) -> None:
    reading = Reading()
    reading.go_on(0, 500, size, settle=True)
    assert [len(job) for job in reading.jobs] == [count]


def test_read_ahead_drops_a_batch_with_other_ranges_than_foreseen_and_ends_with_a_second_one() -> None:
    reading = Reading()
    reading.go_on(0)
    assert reading.take(1, of=2) is None
    assert reading.dropped == ["read 1", "read 2"]
    reading.go_on(1)
    assert reading.take(2, of=3) is None
    reading.go_on(2)
    assert reading.take(3) is None
    assert reading.names == ["1", "2", "2", "3", "4", "5"]
    assert sorted(reading.dropped) == sorted(f"read {name}" for name in reading.names)


def test_read_ahead_drops_batches_that_were_not_taken_when_a_later_one_is() -> None:
    reading = Reading()
    reading.go_on(0, settle=True)
    reading.go_on(0)
    assert reading.take(5) == "read 5"
    assert sorted(reading.dropped) == [f"read {n}" for n in (1, 2, 3, 4)]
    assert reading.take(5) is None, "a second attempt reads it by itself"
    assert reading.take(6) == "read 6"


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(3)])
def test_read_ahead_ends_with_a_failure_that_fails_no_batch(error: BaseException) -> None:
    reading = Reading(error)
    reading.go_on(0)
    assert reading.take(1) is None
    reading.go_on(1)
    assert reading.take(2) is None
    assert reading.jobs == [["1", "2"]]
    reading.ahead.close()


def test_read_ahead_is_interrupted_by_the_end_of_a_run() -> None:
    reading = Reading()
    reading.may_end.clear()
    reading.session.interruptTag.side_effect = lambda _: reading.may_end.set()
    reading.go_on(0)
    reading.ahead.close()
    assert reading.dropped == ["read 1", "read 2"]
