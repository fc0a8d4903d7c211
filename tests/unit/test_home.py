"""The folder of a home, whatever its path has in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger


def test_home_and_ledger_are_created_for_their_user_alone(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    home.create()
    Ledger.open(home.ledger_url)
    found = (Path(home.root), *Path(home.root).glob("*[!ml]"))  # but SQLite's own files
    assert {path.name: oct(path.stat().st_mode)[-3:] for path in found} == {
        "home": "700", "logs": "700", "quality": "700", "quarantine": "700", "sources": "700",
        "staged": "700", "ledger.db": "600",
    }  # fmt: skip
    Path(home.root).chmod(0o755)
    home.create()
    assert oct(Path(home.root).stat().st_mode)[-3:] == "755", "a mode that was set stays"


@pytest.mark.parametrize("name", ["a?b", "a#b", "a b", "a[1]", "%", "ü"])
def test_home_has_its_ledger_in_its_own_folder(tmp_path: Path, name: str) -> None:
    home = Home(str(tmp_path / name))
    Ledger.open(home.ledger_url)
    assert [file.parent.name for file in tmp_path.rglob("ledger.db")] == [name]


def test_home_with_an_escaped_character_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "a%20b"))
    with pytest.raises(ConfigError, match="has %20, which delta-rs reads as ' '"):
        Home.from_env()
    monkeypatch.setenv("SLUICE_HOME", " ")
    with pytest.raises(ConfigError, match="SLUICE_HOME is blank"):
        Home.from_env()
