"""Limits as the file writes them, and as they are read aloud."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sluice.lag import Limits
from sluice.pipeline.starting import Lag


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ({}, Limits(0)),
        ({"max_records": 7}, Limits(7)),
        ({"max_age": "15m"}, Limits(None, timedelta(minutes=15))),  # and not: or a single record
        ({"max_retention_share": 0.5}, Limits(None, None, 0.5)),
        ({"max_records": 0, "max_age": "15m"}, Limits(0, timedelta(minutes=15))),
        ({"max_records": 7, "max_age": "1h", "match": "all"}, Limits(7, timedelta(hours=1), None, "all")),
    ],
)
def test_limits_are_those_that_the_file_writes(written: dict[str, Any], limits: Limits) -> None:
    assert Limits.of(Lag.model_validate(written)) == limits


def test_limits_can_be_read_aloud() -> None:
    limits = Limits(1000, timedelta(minutes=15), 0.5, "all")
    assert str(limits) == "more than 1,000 records and older than 15 min and over 50% of the retention time"
