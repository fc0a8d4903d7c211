"""Splitting planned ranges by what was counted; no JVM."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.pipeline import Rows
from sluice.ranges import Counts, OffsetRange
from sluice_spark.batch.account import PromiseError, account_exactly, account_for
from sluice_spark.sinks.base import Tally

SPAN = OffsetRange("t", 0, 10, 20)
KEY = ("t", 0)
ALL = list(Rows)


def split(rows: Rows, read: int, bad: int, out: Tally | None) -> Counts:
    (account,) = account_for(rows, [SPAN], {KEY: read}, {KEY: bad} if bad else {}, {KEY: out} if out else {})
    assert account.range == SPAN
    return account.counts


def tally(rows: int, offsets: int | None = None, first: int = 10, last: int = 19) -> Tally:
    return Tally(rows, rows if offsets is None else offsets, first, last)


@pytest.mark.parametrize("rows", ALL)
def test_all_read_and_written(rows: Rows) -> None:
    assert split(rows, 10, 0, tally(10)) == Counts(written=10)


@pytest.mark.parametrize("rows", ALL)
def test_what_was_not_read_is_absent_and_what_broke_a_rule_is_quarantined(rows: Rows) -> None:
    assert split(rows, 7, 2, tally(5)) == Counts(written=5, quarantined=2, absent=3)


@pytest.mark.parametrize("rows", ALL)
def test_a_range_of_nothing_but_bad_records(rows: Rows) -> None:
    assert split(rows, 10, 10, None) == Counts(quarantined=10)


@pytest.mark.parametrize("rows", ALL)
def test_a_range_without_a_record_is_all_absent(rows: Rows) -> None:
    assert account_for(rows, [SPAN], {}, {}, {})[0].counts == Counts(absent=10)


def test_dropped_records_are_filtered_where_that_is_allowed() -> None:
    assert split(Rows.FILTER, 10, 1, tally(4)) == Counts(written=4, filtered=5, quarantined=1)
    assert split(Rows.FILTER, 10, 0, None) == Counts(filtered=10)
    assert split(Rows.MANY, 10, 0, tally(30, offsets=4)) == Counts(written=4, filtered=6)


def test_an_aggregate_takes_every_good_record() -> None:
    (account,) = account_for(Rows.AGGREGATE, [SPAN], {KEY: 9}, {KEY: 2}, {})
    assert account.counts == Counts(written=7, quarantined=2, absent=1)


def test_one_row_per_record_means_neither_fewer_nor_more() -> None:
    with pytest.raises(PromiseError, match="10 records went into the transform and 9 rows came out"):
        split(Rows.ONE, 10, 0, tally(9))
    with pytest.raises(PromiseError):
        split(Rows.ONE, 10, 0, None)


@pytest.mark.parametrize("rows", [Rows.ONE, Rows.FILTER])
def test_a_doubled_offset_is_seen_even_when_the_numbers_would_add_up(rows: Rows) -> None:
    with pytest.raises(PromiseError, match="10 rows of 9 records"):
        split(rows, 10, 0, tally(10, offsets=9))


@pytest.mark.parametrize("rows", ALL)
def test_more_offsets_than_good_records_cannot_be(rows: Rows) -> None:
    with pytest.raises(PromiseError):
        split(rows, 10, 3, tally(8))


@pytest.mark.parametrize("rows", ALL)
def test_more_records_than_offsets_cannot_be(rows: Rows) -> None:
    with pytest.raises(PromiseError, match="11 records were read"):
        split(rows, 11, 0, tally(10))


@pytest.mark.parametrize(
    "written",
    [
        {("t", 1): Tally(1, 1, 10, 10)},
        {("u", 0): Tally(1, 1, 10, 10)},
        {KEY: Tally(1, 1, 9, 9)},
        {KEY: Tally(1, 1, 20, 20)},
        {KEY: Tally(2, 2, 19, 20)},
    ],
)
def test_offsets_that_were_not_planned_are_strangers(written: dict[tuple[str, int], Tally]) -> None:
    with pytest.raises(PromiseError, match="did not read"):
        account_for(Rows.MANY, [SPAN], {KEY: 10}, {}, written)


def test_each_partition_is_held_to_its_own_count() -> None:
    spans = [SPAN, OffsetRange("t", 1, 0, 10)]
    read = {KEY: 10, ("t", 1): 10}
    with pytest.raises(PromiseError, match="t-0"):  # 9 + 11 would add up over both
        account_for(Rows.ONE, spans, read, {}, {KEY: tally(9), ("t", 1): Tally(11, 11, 0, 9)})


def test_a_broken_promise_says_what_happened_to_the_data_and_what_to_do() -> None:
    with pytest.raises(PromiseError) as caught:
        split(Rows.ONE, 10, 0, tally(9))
    assert "nothing of this batch is visible" in caught.value.state
    assert "rows: filter" in caught.value.next_step
    assert caught.value.exit_code == 10


def test_what_was_passed_over_is_filtered_whatever_the_file_promises() -> None:
    passed = [OffsetRange(SPAN.topic, SPAN.partition, SPAN.start + 2, SPAN.start + 6)]
    written = {KEY: Tally(5, 5, SPAN.start, SPAN.end - 1)}
    (account,) = account_for(Rows.ONE, [SPAN], {KEY: 5}, {}, written, passed=passed)
    assert account.counts == Counts(written=5, filtered=4, absent=1)
    with pytest.raises(PromiseError, match="which has 6 offsets to read"):
        account_for(Rows.ONE, [SPAN], {KEY: 7}, {}, written, passed=passed)


def exactly(rows: Rows, came: list[int], bad: list[int], written: list[int] | None) -> tuple[int, ...]:
    at = (
        {("t", 0): np.array(came)},
        {("t", 0): np.array(bad)},
        None if written is None else {("t", 0): np.array(written)},
    )
    (account,) = account_exactly(rows, [OffsetRange("t", 0, 10, 20)], *at)
    counts = account.counts
    return counts.written, counts.filtered, counts.quarantined, counts.absent


def test_exact_offsets_split_a_range_as_counts_do_and_see_what_counts_cannot() -> None:
    assert exactly(Rows.ONE, [9, 10, 11, 12, 20], [12], [10, 11]) == (2, 0, 1, 7)
    assert exactly(Rows.FILTER, [10, 11, 12], [], [11]) == (1, 2, 0, 7)
    assert exactly(Rows.AGGREGATE, [10, 11], [], None) == (2, 0, 0, 8)
    with pytest.raises(PromiseError, match="rows: one"):
        exactly(Rows.ONE, [10, 11], [], [10])
    with pytest.raises(PromiseError, match="rows: filter"):
        exactly(Rows.FILTER, [10, 11], [11], [11])  # as many rows as good records, and of the wrong one
