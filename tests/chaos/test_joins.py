"""Transforms that join tables: a batch that is processed again makes the same rows, although a table moved on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

JOIN = "SELECT s.*, c.carrier FROM source s LEFT JOIN carriers c ON c.id = s.id % 2"
Row = tuple[int, int, str]


def joining(sandbox: Sandbox, sql: str = JOIN, table: dict[str, Any] | None = None, **keys: Any) -> None:
    tables = {"carriers": {"delta": {"path": "carriers", **(table or {})}}}
    sandbox.configure(transform={"sql": sql}, tables=tables, **keys)


def carriers(sandbox: Sandbox, name: str, **more: Any) -> int:
    """Write a version of the table in which all carriers have this name; return the version."""
    path = str(sandbox.home / "carriers")
    rows = {"id": pa.array([0, 1], pa.int64()), "carrier": [f"{name} 0", f"{name} 1"], **more}
    write_deltalake(path, pa.table(rows), mode="overwrite", schema_mode="overwrite")
    return int(DeltaTable(path).version())


def joined(sandbox: Sandbox) -> Counter[Row]:
    rows = sandbox.rows()
    names = ("_partition", "_offset", "carrier")
    return Counter() if rows is None else Counter(zip(*(rows.column(c).to_pylist() for c in names), strict=True))


def expected(offsets: list[tuple[str, int, int]], name: str, first: int = 0) -> Counter[Row]:
    """The rows of records that were fed one after another, the first of them with the id ``first``."""
    return Counter((p, o, f"{name} {(first + n) % 2}") for n, (_, p, o) in enumerate(offsets))


def versions(sandbox: Sandbox, path: str = "table") -> list[int]:
    """The versions that the commits of the sink name, oldest first."""
    history = DeltaTable(str(sandbox.home / path)).history()
    notes = [json.loads(note) if isinstance(note := c["sluice"], str) else note for c in history if "sluice" in c]
    return [note["tables"]["carriers"]["version"] for note in notes[::-1]]


@pytest.mark.parametrize(
    ("recovery", "point"),
    [
        ("replay", "rows-staged"),
        ("wal", "before-sink-commit"),
        *(
            pytest.param(recovery, point, marks=pytest.mark.long)
            for recovery, points in {
                "replay": ("batch-started", "before-sink-commit", "sink-committed", "batch-recorded", "query-ended"),
                "wal": ("sealed", "batch-started", "rows-staged", "sink-committed", "batch-recorded"),
                "hot": ("rows-staged",),
                "ignore_range": ("rows-staged",),
                "ignore_batch": ("rows-staged",),
            }.items()
            for point in points
        ),
    ],
)
def test_a_batch_that_is_processed_again_makes_the_same_rows(sandbox: Sandbox, recovery: str, point: str) -> None:
    joining(sandbox, recovery=recovery)
    assert carriers(sandbox, "old") == 0
    first = sandbox.feed(6)
    sandbox.run("died", kill_at=point)
    assert carriers(sandbox, "new") == 1
    second = sandbox.feed(6)
    sandbox.run("next")
    # what was never begun is not bound to any version
    begun = "new" if point == "sealed" else "old"
    assert joined(sandbox) == expected(first, begun) + expected(second, "new")
    sandbox.assert_exact()
    assert versions(sandbox) == [int(begun == "new"), 1]
    status = json.loads(sandbox.cli("status", sandbox.name, "--json").stdout)
    told = {row["run"]: row.get("tables", {}).get("carriers") for row in status}
    here = point in ("sink-committed", "batch-recorded", "query-ended") or point == "sealed"
    assert told == {"died": None if point == "sealed" else [0], "next": [1] if here else [0, 1]}
    assert "tables: carriers at version" in sandbox.cli("status", sandbox.name).stderr
