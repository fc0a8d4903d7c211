"""Text that databases take, and ids of runs that fit."""

from __future__ import annotations

from sluice.text import LONGEST_RUN, instant, run_of_interval, storable


def test_the_id_of_an_intervals_run_is_the_same_for_the_same_and_another_for_another() -> None:
    assert run_of_interval("manual__2026") == "manual__2026__interval"
    first, second = (run_of_interval("x" * 249 + end) for end in "ab")
    assert first == run_of_interval("x" * 249 + "a") != second
    assert len(first) == len(second) == LONGEST_RUN
    assert first.endswith("__interval")
    assert run_of_interval("x" * 240) == "x" * 240 + "__interval"


def test_a_time_that_python_does_not_have_is_told_by_its_year() -> None:
    assert instant(1_356_998_400_123_456) == "2013-01-01T00:00:00.123456+00:00"
    assert instant(1_795_590_000_000_000_000) == "the year 58869"
    assert instant(-63_549_000_000_000_000) == "the year -44"


def test_ordinary_values_are_stored_as_they_are() -> None:
    value = {"a": [1, 2.5, None, True, "ü\n\t\\x00"], "b": {"c": "😀"}}
    assert storable(value) == value
