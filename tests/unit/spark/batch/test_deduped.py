"""What did not pass and was not late is a duplicate."""

from __future__ import annotations

import pytest

from sluice.errors import SluiceError
from sluice_spark.batch.deduped import duplicates_in


def test_what_neither_passed_nor_was_late_is_a_duplicate() -> None:
    came = {("t", 0): 10, ("t", 1): 4, ("t", 2): 1}
    assert duplicates_in(came, {("t", 0): 3, ("t", 2): 1}, {("t", 0): 5, ("t", 1): 4}) == {("t", 0): 2}
    assert duplicates_in({}, {}, {}) == {}


def test_more_rows_than_came_are_no_account() -> None:
    with pytest.raises(SluiceError, match="of t-1, 2 more rows passed dedupe") as refused:
        duplicates_in({("t", 0): 1}, {}, {("t", 0): 1, ("t", 1): 2})
    assert "nothing of this batch is visible" in refused.value.state
