"""What an operator drops is filtered, and nothing else is."""

from __future__ import annotations

import pytest

from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_spark.batch.stateful import dropped


def test_late_records_move_from_written_to_filtered() -> None:
    spans = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 4)]
    accounts = [RangeAccount(spans[0], Counts(written=6, filtered=2, absent=2)), RangeAccount(spans[1], Counts(4))]
    assert dropped(accounts, {("t", 0): 5}) == [
        RangeAccount(spans[0], Counts(written=1, filtered=7, absent=2)), accounts[1],
    ]  # fmt: skip


def test_more_late_records_than_rows_are_no_account() -> None:
    with pytest.raises(ValueError, match="does not balance"):
        dropped([RangeAccount(OffsetRange("t", 0, 0, 2), Counts(written=1, absent=1))], {("t", 0): 2})
