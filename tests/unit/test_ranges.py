"""Ranges and their split."""

from __future__ import annotations

import pytest

from sluice.ranges import Counts, OffsetRange, RangeAccount, describe, ranges_between


def test_a_range_knows_its_length_and_reads_as_its_bounds() -> None:
    span = OffsetRange("t", 3, 10, 14)
    assert len(span) == 4
    assert str(span) == "t-3 [10, 14)"


@pytest.mark.parametrize(("start", "end"), [(-1, 4), (5, 4)])
def test_what_runs_backwards_is_no_range(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        OffsetRange("t", 0, start, end)


def test_an_account_that_balances_survives_its_own_form() -> None:
    account = RangeAccount(OffsetRange("t", 0, 5, 20), Counts(1, 2, 3, 4, 5))
    assert account.counts.planned == 15
    assert RangeAccount.from_dict(account.as_dict()) == account


@pytest.mark.parametrize(
    "counts",
    [
        Counts(written=9),
        Counts(written=11),
        Counts(written=5, filtered=4),
        Counts(written=11, filtered=-1),
        Counts(written=11, lost=-1),
        Counts(),
    ],
)
def test_an_account_that_does_not_balance_cannot_be_made(counts: Counts) -> None:
    span = OffsetRange("t", 0, 0, 10)
    with pytest.raises(ValueError, match=r"t-0 \[0, 10\) does not balance"):
        RangeAccount(span, counts)
    with pytest.raises(ValueError, match="does not balance"):
        RangeAccount.from_dict(
            {"topic": "t", "partition": 0, "start": 0, "end": 10, "written": counts.written,
             "filtered": counts.filtered, "quarantined": 0, "absent": 0, "lost": counts.lost}
        )  # fmt: skip


def test_counts_add_up_part_by_part() -> None:
    total = sum((Counts(1, 2, 3, 4, 5), Counts(10, 20, 30, 40, 50)), Counts())
    assert total.as_dict() == {
        "planned": 165, "written": 11, "filtered": 22, "quarantined": 33, "absent": 44, "lost": 55,
    }  # fmt: skip


def test_ranges_between_leave_out_what_did_not_move_and_begin_a_new_partition_at_its_beginning() -> None:
    start = {"a": {0: 5, 1: 7}}
    end = {"b": {0: 2}, "a": {0: 9, 1: 7, 2: 3}}
    assert ranges_between(start, end) == [
        OffsetRange("a", 0, 5, 9), OffsetRange("a", 2, 0, 3), OffsetRange("b", 0, 0, 2),
    ]  # fmt: skip


def test_a_long_list_of_ranges_is_cut_and_says_how_much_is_left_out() -> None:
    ranges = [OffsetRange("t", p, 0, 1) for p in range(10)]
    assert describe(ranges[:1]) == "t-0 [0, 1)"
    assert describe(ranges).endswith("t-7 [0, 1) and 2 more")
