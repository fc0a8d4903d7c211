"""Intervals of record time: their keys, widths and overlaps, and refusals of others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from sluice.errors import ConfigError
from sluice.run.interval import Interval

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end", "key"),
    [
        ("2013-03-01", "2013-04-01", "2013-03-01T00:00:00Z/2013-04-01T00:00:00Z"),
        ("2013-03-01T06:00", "2013-03-01T06:00:00.5Z", "2013-03-01T06:00:00Z/2013-03-01T06:00:00.500Z"),
        ("2013-03-01T00:00:00+01:00", "2013-03-01T00:00:00Z", "2013-02-28T23:00:00Z/2013-03-01T00:00:00Z"),
        # parts of a millisecond: no record lies between
        ("2013-03-01T00:00:00.0001", "2013-03-01T00:00:00.0011", "2013-03-01T00:00:00.001Z/2013-03-01T00:00:00.002Z"),
    ],
)
def test_interval_has_one_key_in_any_spelling(start: str, end: str, key: str) -> None:
    found = Interval.parse(start, end, now=NOW)
    assert found.key == key
    assert str(found) == f"[{key.replace('/', ', ')})"
    there = timezone(timedelta(hours=-5))
    assert found == Interval.from_key(key) == Interval.of(found.start.astimezone(there), found.end.astimezone(there))


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("2013-03-01", "2013-03-01T00:00Z", "has no width"),
        ("2013-03-01T00:00:00+01:00", "2013-02-28T23:00Z", "has no width"),
        ("2013-03-02", "2013-03-01", "is reversed"),
        ("2026-10-31", "2026-11-02", "in the future"),
        ("last week", "2013-03-01", "'last week' is not a time"),
        ("2013-03-01", "2013-02-30", "'2013-02-30' is not a time"),
    ],
)
def test_interval_refuses(start: str, end: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Interval.parse(start, end, now=NOW)
    assert caught.value.state == "nothing was read or written"
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("day", "hours"),
    [(datetime(2013, 3, 10), 23), (datetime(2013, 11, 3), 25), (datetime(2013, 7, 1), 24)],
    ids=["clocks go forward", "clocks go back", "neither"],
)
def test_interval_of_a_day_in_new_york_has_23_24_or_25_hours(day: datetime, hours: int) -> None:
    zone = ZoneInfo("America/New_York")
    found = Interval.of(day.replace(tzinfo=zone), (day + timedelta(days=1)).replace(tzinfo=zone), now=NOW)
    start, end = found.milliseconds
    assert end - start == hours * 3_600_000


def test_intervals_overlap_if_they_share_a_millisecond() -> None:
    march, april = Interval.parse("2013-03-01", "2013-04-01"), Interval.parse("2013-04-01", "2013-05-01")
    assert not march.overlaps(april)
    assert not april.overlaps(march)
    over = Interval.parse("2013-03-31T23:59:59.999", "2013-04-01T00:00:00.001")
    assert all(over.overlaps(other) and other.overlaps(over) for other in (march, april))
    assert march.overlaps(march)
