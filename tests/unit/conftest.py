"""Ledger databases: a SQLite file, and a PostgreSQL database of the suite's own server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.postgres import new_database


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty ledger database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/folder/ledger.db"
    return new_database(request.getfixturevalue("postgres"))
