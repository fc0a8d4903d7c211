"""The folder of a home, whatever its path has in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.home import Home
from sluice.ledger import Ledger


@pytest.mark.parametrize("name", ["a%20b", "a?b", "a#b", "a b", "a[1]", "%", "ü"])
def test_home_has_its_ledger_in_its_own_folder(tmp_path: Path, name: str) -> None:
    home = Home(str(tmp_path / name))
    Ledger.open(home.ledger_url)
    assert [file.parent.name for file in tmp_path.rglob("ledger.db")] == [name]
