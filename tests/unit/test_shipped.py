"""Without a checkout, relative paths begin at the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice import shipped
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.pipeline import pipelines_folder


def test_without_a_checkout_paths_begin_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "CHECKOUT", None)
    monkeypatch.chdir(tmp_path)
    for name in ("SLUICE_HOME", "SLUICE_PIPELINES"):
        monkeypatch.delenv(name, raising=False)
    assert Home.from_env().root == str(tmp_path / "var")
    with pytest.raises(ConfigError, match=f"no folder of pipelines: {tmp_path}/include/pipelines"):
        pipelines_folder()
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    assert pipelines_folder() == tmp_path / "include" / "pipelines"
