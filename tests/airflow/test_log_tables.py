"""Tables as a task's log shows them."""

from __future__ import annotations

from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_airflow.log_tables import account_table, lag_table, table


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    assert table(("name", "n", "seconds", "flag"), [["a", 1234567, 0.25, True], ["longer", 5, 1234.0, None]]) == (
        "name            n  seconds  flag\n"
        "------  ---------  -------  ----\n"
        "a       1,234,567      0.2  True\n"
        "longer          5  1,234.0"
    )
    assert table(("name", "n"), []) == "name  n\n----  -"


def test_the_split_of_each_range_has_its_sum_below() -> None:
    accounts = [
        RangeAccount(OffsetRange("t", 0, 0, 1_500), Counts(written=1_490, quarantined=4, lost=6)),
        RangeAccount(OffsetRange("t", 11, 7, 9), Counts(filtered=1, absent=1)),
    ]
    *lines, total = account_table(accounts).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["t", "0", "0", "1,500", "1,500", "1,490", "0", "4", "0", "6"],
        ["t", "11", "7", "9", "2", "0", "1", "0", "1", "0"],
    ]
    assert total == "in all: 1,502 planned, 1,490 written, 1 filtered, 4 quarantined, 1 absent, 6 lost"


def test_what_is_not_known_of_a_lag_is_left_empty() -> None:
    part = {"topic": "t", "partition": 0, "status": "UNKNOWN", "position": 4, "start": None, "end": None, "lag": None}
    shown = lag_table({"partitions": [{**part, "age": None, "lost": None}]})
    assert shown.splitlines()[-1].split() == ["t", "0", "UNKNOWN", "4"]
