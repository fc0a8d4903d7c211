"""Made-up rows: the same offset always has the same row, and none comes before its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_rate_ends_and_times_agree(clockwork: Clockwork, offset: int) -> None:
    at = clockwork.time(offset)
    for now in (at, at + 1, at + 999):
        end = clockwork.end(now)
        assert clockwork.time(end - 1) <= now < clockwork.time(end)
        first = clockwork.first(now)
        assert clockwork.time(first) >= now
        assert first == 0 or clockwork.time(first - 1) < now
    assert clockwork.end(clockwork.begun - 1) == 0


def test_rate_finds_its_backlog_and_refuses_another_rate(tmp_path: Path) -> None:
    (state,) = source(tmp_path, backlog="1h", partitions=4).snapshot()
    assert set(state.partitions) == {0, 1, 2, 3}
    assert 9_000 < state.partitions[0].end < 9_100
    with pytest.raises(ConfigError, match="10 in 4"):
        source(tmp_path, rows_per_second=20)
    (tmp_path / "sources" / "p" / "rate.json").write_text("{")
    with pytest.raises(SinkError, match=r"rate\.json"):
        source(tmp_path)
