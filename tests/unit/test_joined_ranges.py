"""Ranges that follow on each other become one: of the same partition, and of no other."""

from __future__ import annotations

from sluice.ranges import OffsetRange, joined


def test_ranges_that_follow_on_each_other_are_joined_within_their_partition() -> None:
    parts = [OffsetRange("t", 0, 5, 9), OffsetRange("t", 0, 0, 5), OffsetRange("t", 0, 10, 12)]
    assert joined(parts) == [OffsetRange("t", 0, 0, 9), OffsetRange("t", 0, 10, 12)]
    elsewhere = [OffsetRange("t", 0, 0, 5), OffsetRange("t", 1, 5, 9), OffsetRange("u", 1, 9, 11)]
    assert joined(elsewhere) == elsewhere
    assert joined([]) == []
