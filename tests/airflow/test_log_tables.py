"""Tables as a task's log shows them, and lengths of time in words."""

from __future__ import annotations

import pytest
from tests.fixtures.golden import Golden

from sluice.lag import Backlog, PartitionLag
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.text import length
from sluice_airflow.log_tables import account_table, lag_table, table


def test_log_tables(golden: Golden) -> None:
    golden("airflow", table(("name", "n", "seconds", "flag"), [["a", 1234567, 0.25, True], ["b", 5, 1234.0, None]]))
    golden("airflow", table(("name", "n"), []))
    accounts = [
        RangeAccount(OffsetRange("t", 0, 0, 1_500), Counts(written=1_490, quarantined=4, lost=6)),
        RangeAccount(OffsetRange("t", 11, 7, 9), Counts(filtered=1, absent=1)),
    ]
    golden("airflow", account_table(accounts))
    parts = (PartitionLag("t", 0, 0, 0, 12, 438_328_912.6), PartitionLag("t", 1, 4, None, None))
    golden("airflow", lag_table(Backlog("t", parts).as_dict()))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.25, "0.2 s"), (59.7, "60 s"), (119, "119 s"), (120, "2 min"), (125, "2 min 5 s"),
        (3600, "1 h"), (3661, "1 h 1 min"), (86_400, "1 d"), (90_000, "1 d 1 h"), (438_328_912.6, "5,073 d 6 h"),
    ],
)  # fmt: skip
def test_log_tables_write_a_length_of_time_in_words(seconds: float, words: str) -> None:
    assert length(seconds) == words
