"""Made-up rows: the same offset always has the same row, and none comes before its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sluice.errors import ConfigError, SinkError
from sluice.home import Home
from sluice.sources.rate.config import RateSource
from sluice.sources.rate.source import Clockwork, MadeUp


def source(root: Path, **keys: Any) -> MadeUp:
    return MadeUp(RateSource.model_validate({"rows_per_second": 10} | keys), Home(str(root)), "p")


@given(
    st.builds(Clockwork, st.just("x"), st.integers(0, 2**50), st.integers(1, 10**7), st.integers(1, 1000)),
    st.integers(0, 10**9),
)
def test_ends_and_times_agree(clockwork: Clockwork, offset: int) -> None:
    at = clockwork.time(offset)
    for now in (at, at + 1, at + 999):
        end = clockwork.end(now)
        assert clockwork.time(end - 1) <= now < clockwork.time(end)
        first = clockwork.first(now)
        assert clockwork.time(first) >= now
        assert first == 0 or clockwork.time(first - 1) < now
    assert clockwork.end(clockwork.begun - 1) == 0


def test_a_first_run_finds_the_backlog(tmp_path: Path) -> None:
    (state,) = source(tmp_path, backlog="1h", partitions=4).snapshot()
    assert set(state.partitions) == {0, 1, 2, 3}
    assert 9_000 < state.partitions[0].end < 9_100
    (again,) = source(tmp_path, partitions=4).snapshot()
    assert again.topic_id == state.topic_id
    assert again.partitions[3].end >= state.partitions[3].end


def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    made = source(tmp_path, backlog="1m")
    begun = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=made.clockwork.begun)
    key = ("rate", 0)
    assert made.offsets_at([key], begun - timedelta(days=1)) == {key: 0}
    assert made.offsets_at([key], begun + timedelta(seconds=3)) == {key: 30}
    assert made.offsets_at([key], begun + timedelta(days=1)) == {key: None}


def test_another_rate_is_refused(tmp_path: Path) -> None:
    source(tmp_path)
    with pytest.raises(ConfigError, match="began with 10 in 1"):
        source(tmp_path, rows_per_second=20)
    (tmp_path / "sources" / "p" / "rate.json").write_text("{")
    with pytest.raises(SinkError, match="cannot be used"):
        source(tmp_path)


def test_refused() -> None:
    for keys in ({"rows_per_second": 0}, {"rows_per_second": 1, "partitions": 0}, {}):
        with pytest.raises(ValidationError):
            RateSource.model_validate(keys)
