"""The account of a batch: planned ranges are split by counts, and no offset is counted twice."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fixtures.books import split as split_of

from sluice.errors import SluiceError
from sluice.pipeline import Rows
from sluice.ranges import Counts, OffsetRange
from sluice_spark.batch.account import PromiseError, RecordCounts, account_exactly, account_for
from sluice_spark.batch.batch_size import fitting
from sluice_spark.batch.dedupe import duplicates_in
from sluice_spark.batch.stateful import dropped
from sluice_spark.sinks.base import Tally

SPAN = OffsetRange("t", 0, 10, 20)
KEY = ("t", 0)
ALL = list(Rows)


def split(rows: Rows, read: int, bad: int, out: Tally | None) -> Counts:
    counted = ({KEY: n} if n else {} for n in (read, bad))
    (account,) = account_for(rows, [SPAN], RecordCounts(*counted), {KEY: out} if out else {})
    assert account.range == SPAN
    return account.counts


def tally(rows: int, offsets: int | None = None, first: int = 10, last: int = 19) -> Tally:
    return Tally(rows, rows if offsets is None else offsets, first, last)


@pytest.mark.parametrize("rows", ALL)
@pytest.mark.parametrize(
    ("read", "bad", "out", "counts"),
    [
        (10, 0, tally(10), Counts(written=10)),
        (7, 2, tally(5), Counts(written=5, quarantined=2, absent=3)),
        (10, 10, None, Counts(quarantined=10)),
        (0, 0, None, Counts(absent=10)),
    ],
)
def test_account_splits_a_range_by_counts(rows: Rows, read: int, bad: int, out: Tally | None, counts: Counts) -> None:
    assert split(rows, read, bad, out) == counts


def test_account_counts_dropped_records_as_filtered_where_the_promise_allows_it() -> None:
    assert split(Rows.FILTER, 10, 1, tally(4)) == Counts(written=4, filtered=5, quarantined=1)
    assert split(Rows.FILTER, 10, 0, None) == Counts(filtered=10)
    assert split(Rows.MANY, 10, 0, tally(30, offsets=4)) == Counts(written=4, filtered=6)
    assert split(Rows.AGGREGATE, 9, 2, None) == Counts(written=7, quarantined=2, absent=1)


@pytest.mark.parametrize(
    ("rows", "read", "bad", "out"),
    [
        ([Rows.ONE], 10, 0, tally(9)),
        ([Rows.ONE], 10, 0, None),
        ([Rows.ONE, Rows.FILTER], 10, 0, tally(10, offsets=9)),  # doubled, although the numbers would add up
        (ALL, 10, 3, tally(8)),  # more offsets than good records
        (ALL, 11, 0, tally(10)),  # more records than offsets
    ],
)
def test_account_refuses_numbers_that_break_the_promise_about_rows(
    rows: list[Rows], read: int, bad: int, out: Tally | None
) -> None:
    for promise in rows:
        with pytest.raises(PromiseError) as caught:
            split(promise, read, bad, out)
        assert caught.value.exit_code == 10
        assert caught.value.state
        assert str(read) in caught.value.what


@pytest.mark.parametrize(
    ("key", "first", "last"), [(("t", 1), 10, 10), (("u", 0), 10, 10), (KEY, 9, 9), (KEY, 20, 20), (KEY, 19, 20)]
)
def test_account_refuses_offsets_that_were_not_planned(key: tuple[str, int], first: int, last: int) -> None:
    with pytest.raises(PromiseError):
        account_for(
            Rows.MANY, [SPAN], RecordCounts({KEY: 10}, {}), {key: tally(last - first + 1, first=first, last=last)}
        )


def test_account_holds_each_partition_to_its_own_count() -> None:
    spans = [SPAN, OffsetRange("t", 1, 0, 10)]
    read = {KEY: 10, ("t", 1): 10}
    with pytest.raises(PromiseError, match="t-0"):  # 9 + 11 would add up over both
        account_for(Rows.ONE, spans, RecordCounts(read, {}), {KEY: tally(9), ("t", 1): Tally(11, 11, 0, 9)})


def test_account_counts_passed_over_offsets_as_filtered_whatever_the_promise() -> None:
    passed = [OffsetRange("t", 0, 12, 16)]
    (account,) = account_for(Rows.ONE, [SPAN], RecordCounts({KEY: 5}, {}), {KEY: tally(5)}, passed=passed)
    assert account.counts == Counts(written=5, filtered=4, absent=1)
    with pytest.raises(PromiseError, match="6 offsets"):
        account_for(Rows.ONE, [SPAN], RecordCounts({KEY: 7}, {}), {KEY: tally(5)}, passed=passed)


def exactly(rows: Rows, came: list[int], bad: list[int], written: list[int] | None) -> Counts:
    at = ({KEY: np.array(came)}, {KEY: np.array(bad)}, None if written is None else {KEY: np.array(written)})
    (account,) = account_exactly(rows, [SPAN], *at)
    return account.counts


def test_account_of_exact_offsets_sees_errors_that_counts_cannot() -> None:
    assert exactly(Rows.ONE, [9, 10, 11, 12, 20], [12], [10, 11]) == Counts(written=2, quarantined=1, absent=7)
    assert exactly(Rows.FILTER, [10, 11, 12], [], [11]) == Counts(written=1, filtered=2, absent=7)
    assert exactly(Rows.AGGREGATE, [10, 11], [], None) == Counts(written=2, absent=8)
    with pytest.raises(PromiseError, match="rows: one"):
        exactly(Rows.ONE, [10, 11], [], [10])
    with pytest.raises(PromiseError, match="rows: filter"):
        exactly(Rows.FILTER, [10, 11], [11], [11])  # as many rows as good records, and of the wrong one


def test_dedupe_counts_records_that_neither_passed_nor_were_late_as_duplicates() -> None:
    came = {("t", 0): 10, ("t", 1): 4, ("t", 2): 1}
    assert duplicates_in(came, {("t", 0): 3, ("t", 2): 1}, {("t", 0): 5, ("t", 1): 4}) == {("t", 0): 2}
    assert duplicates_in({}, {}, {}) == {}
    with pytest.raises(SluiceError, match="t-1, 2 ") as refused:
        duplicates_in({("t", 0): 1}, {}, {("t", 0): 1, ("t", 1): 2})
    assert refused.value.state


def test_late_records_move_from_written_to_filtered_and_never_below_zero() -> None:
    other = split_of(0, 4, 1)
    moved = dropped([split_of(0, 10, written=6, filtered=2, absent=2), other], {("t", 0): 5})
    assert moved == [split_of(0, 10, written=1, filtered=7, absent=2), other]
    with pytest.raises(ValueError, match="balance"):
        dropped([split_of(0, 2, written=1, absent=1)], {("t", 0): 2})


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
def test_batch_size_follows_the_pace_of_the_largest_before(done: list[tuple[int, float]], size: int) -> None:
    assert fitting(done, 30.0, 5_000_000) == size
