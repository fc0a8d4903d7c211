"""Batches that are read before they are planned: what is taken, what is dropped, and what is never waited for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from sluice.ranges import OffsetRange
from sluice_spark.arrow import ahead
from sluice_spark.arrow.ahead import Ahead, Foreseen


class Session:
    """What reading ahead asks of a Spark session."""

    def __init__(self) -> None:
        self.interrupted = 0

    def addTag(self, _: str) -> None:
        """Take a tag."""

    def interruptTag(self, _: str) -> list[str]:
        """Count."""
        self.interrupted += 1
        return []


class Reading:
    """Reads batches; what it read, what was dropped, and when it may go on."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.jobs: list[list[str]] = []
        self.dropped: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.error = error
        self.session = Session()

    def __call__(self, batches: Sequence[Foreseen]) -> dict[str, str]:
        """Read."""
        self.jobs.append([name for name, _ in batches])
        assert self.may_end.wait(30)
        if self.error:
            raise self.error
        return {name: f"read {name}" for name, _ in batches}

    def ahead(self) -> Ahead[str]:
        """Return what is tested."""
        return Ahead(self.session, self, self.dropped.append)  # type: ignore[arg-type]


def settled(it: Ahead[Any]) -> None:
    """Wait until nothing is being read."""
    for window in it._windows:
        window.results.exception(30)


def spans(n: int, size: int = 100_000) -> tuple[OffsetRange, ...]:
    """Return the ranges of batch ``n``."""
    return (OffsetRange("t", 0, n * size, (n + 1) * size),)


def after(n: int, last: int = 30, size: int = 100_000) -> list[Foreseen]:
    """Return the batches after one."""
    return [(str(k), spans(k, size)) for k in range(n + 1, last + 1)]


@pytest.mark.parametrize(
    ("last", "sizes"),
    [(1, [1]), (5, [2, 2, 1]), (30, [2, 4, 8, 8, 4, 2, 2]), (90, [2, 4, 8, 16, 20, 20, 10, 5, 2, 2, 1])],
)
def test_windows_grow_then_shrink_and_each_batch_is_read_once(last: int, sizes: list[int]) -> None:
    reading = Reading()
    it = reading.ahead()
    for n in range(last + 1):
        found = it.take(str(n), spans(n))
        assert found == (f"read {n}" if n else None)
        it.go_on(after(n, last))
        settled(it)
    assert [len(job) for job in reading.jobs] == sizes
    assert [name for job in reading.jobs for name in job] == [str(n) for n in range(1, last + 1)]
    assert reading.dropped == []
    it.close()
    assert reading.session.interrupted == 0


def test_windows_that_take_long_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_LONG", 0.0)
    reading = Reading()
    it = reading.ahead()
    for n in range(8):
        it.take(str(n), spans(n))
        it.go_on(after(n, 8))
        settled(it)
    assert [len(job) for job in reading.jobs] == [2, 2, 2, 2]


def test_at_most_two_windows_are_held_and_nobody_waits_for_the_second() -> None:
    reading = Reading()
    it = reading.ahead()
    it.go_on(after(0))
    settled(it)
    reading.may_end.clear()
    it.go_on(after(0))
    it.go_on(after(0))
    assert it.take("1", spans(1)) == "read 1"
    it.go_on(after(1))
    reading.may_end.set()
    settled(it)
    it.go_on(after(1))
    assert len(reading.jobs) == 2


def test_a_large_batch_is_read_alone() -> None:
    reading = Reading()
    it = reading.ahead()
    it.go_on(after(0, size=5_000_000))
    assert it.take("1", spans(1, 5_000_000)) == "read 1"
    assert reading.jobs == [["1"]]


@pytest.mark.parametrize("tiny", [1, 10])
def test_many_small_batches_are_read_in_portions(tiny: int) -> None:
    reading = Reading()
    it = reading.ahead()
    it.go_on(after(0, last=500, size=tiny))
    settled(it)
    assert [len(job) for job in reading.jobs] == [ahead._BATCHES]


def test_other_ranges_than_foreseen_are_dropped_and_a_second_time_ends_it() -> None:
    reading = Reading()
    it = reading.ahead()
    it.go_on(after(0))
    assert it.take("1", spans(2)) is None
    assert reading.dropped == ["read 1", "read 2"]
    it.go_on(after(1))
    assert it.take("2", spans(3)) is None
    it.go_on(after(2))
    assert it.take("3", spans(3)) is None
    assert [name for job in reading.jobs for name in job] == ["1", "2", "2", "3", "4", "5"]
    assert sorted(reading.dropped) == sorted(f"read {n}" for job in reading.jobs for n in job)


def test_batches_that_were_not_taken_are_dropped_when_a_later_one_is() -> None:
    reading = Reading()
    it = reading.ahead()
    it.go_on(after(0))
    settled(it)
    it.go_on(after(0))
    assert it.take("5", spans(5)) == "read 5"
    assert sorted(reading.dropped) == [f"read {n}" for n in (1, 2, 3, 4)]
    assert it.take("5", spans(5)) is None  # a second attempt reads it by itself
    assert it.take("6", spans(6)) == "read 6"


def test_a_failure_is_nobodys_and_ends_it() -> None:
    reading = Reading(OSError("disk full"))
    it = reading.ahead()
    it.go_on(after(0))
    assert it.take("1", spans(1)) is None
    it.go_on(after(1))
    assert it.take("2", spans(2)) is None
    assert reading.jobs == [["1", "2"]]


def test_a_reading_that_is_ended_from_within_is_waited_for_by_nobody() -> None:
    reading = Reading(SystemExit(3))
    it = reading.ahead()
    it.go_on(after(0))
    settled(it)
    assert it.take("1", spans(1)) is None
    it.close()


def test_the_end_of_a_run_ends_what_is_being_read() -> None:
    reading = Reading()
    it = reading.ahead()
    reading.may_end.clear()
    it.go_on(after(0))
    threading.Timer(0.1, reading.may_end.set).start()
    it.close()
    assert reading.session.interrupted == 1
    assert reading.dropped == ["read 1", "read 2"]
