"""The page that says what records decode to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.decoding import Refused, decoded
from tests.fixtures.registry import StandIn, stand_in

from sluice.shipped import CHECKOUT

FIVE_MB = "x" * 5_000_000
PAGE = (CHECKOUT / "docs" / "decoding.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Return the rows of a table of the page."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) > 9
    return [[cell.strip().removeprefix("`").removesuffix("`") for cell in row] for row in rows]


def differences(spark: SparkSession, spec: dict[str, Any], heading: str) -> list[Any]:
    """Return the rows of a table of the page whose records decode to something else, with what that is."""
    rows = table(heading)
    found = decoded(spark, spec, [row[0].replace("↵", "\n").encode() for row in rows]).found
    shown = [
        f"refused: `{f.rule}" if isinstance(f, Refused) else json.dumps(plain(f), ensure_ascii=False) for f in found
    ]
    return [(row, now) for row, now in zip(rows, shown, strict=True) if row[1] != now]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the page shows it: without nulls."""
    inner = {k: plain(v) if isinstance(v, dict) else v for k, v in row.items()}
    return {k: v for k, v in inner.items() if v is not None}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A schema registry, which the default connection names."""
    with stand_in() as found:
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", found.connection())
        yield found
