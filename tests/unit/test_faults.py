"""Points that kill kill only when they are asked to."""

from __future__ import annotations

import pytest

from sluice.faults import point


def test_no_point_kills_when_none_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_KILL_AT", raising=False)
    point("rows-staged")
    monkeypatch.setenv("SLUICE_KILL_AT", "rows-staged:99")
    point("rows-staged")
    with pytest.raises(AssertionError):
        point("no-such-point")
