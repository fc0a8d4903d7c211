"""The page that says what records decode to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures.registry import StandIn, stand_in

from sluice.shipped import CHECKOUT

FIVE_MB = "x" * 5_000_000
XML = "_id INT, i INT, s STRING, a ARRAY<INT>, o STRUCT<x: INT, _u: STRING>, p STRUCT<_VALUE: DOUBLE, _unit: STRING>"
PAGE = (CHECKOUT / "docs" / "decoding.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Return the rows of a table of the page."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) > 9
    return [[cell.strip().removeprefix("`").removesuffix("`") for cell in row] for row in rows]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A schema registry, which the default connection names."""
    with stand_in() as found:
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", found.connection())
        yield found
