"""Where a run keeps its state."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigError
from sluice.home import Home


def test_a_home_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", "s3://key:hidden@bucket/home")
    with pytest.raises(ConfigError, match="must be a path") as caught:
        Home.from_env()
    assert "hidden" not in str(caught.value)
