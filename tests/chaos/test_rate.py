"""Made-up rows as a source: each lands once, whatever is killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.place import KeptPlace, account

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


@dataclass
class Load(KeptPlace):
    """A pipeline that reads made-up rows in two partitions; those whose number ends in 0 are refused."""

    def spec(self) -> dict[str, Any]:
        return {
            "source": {
                "rate": {"rows_per_second": 1, "partitions": 2, "backlog": "40s", "max_records_per_batch": 40}
            },
            "decode": {"json": {"schema": "value BIGINT, timestamp TIMESTAMP"}},
            "rules": [{"name": "odd", "sql": {"passes": "value % 10 <> 0"}}],
            "sink": {"delta": {"path": "out"}}, "quality": {"max_quarantined": "100%"},
        }  # fmt: skip

    def assert_exact(self, planned: int) -> None:
        good, bad = self.offsets("out"), self.offsets("out_quarantine")
        found = good + bad
        assert set(found.values()) == {1}
        for part in (0, 1):
            assert sorted(o for _, p, o in found if p == part) == list(range(sum(p == part for _, p, _ in found)))
        assert sum(found.values()) >= planned > 0
        assert all((2 * o + p) % 10 == 0 for _, p, o in bad)
        assert all(r["value"] == 2 * r["_offset"] + r["_partition"] for r in self.table("out"))
        assert all(r["timestamp"] == r["_timestamp"] for r in self.table("out"))
        self.audit()


POINTS = {"replay": ("rows-staged", "sink-committed"), "wal": ("segments-staged", "batch-recorded")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "engine"),
    [
        ("replay", "auto"),
        pytest.param("replay", "spark", marks=pytest.mark.long),
        pytest.param("wal", "auto", marks=pytest.mark.long),
        pytest.param("wal", "spark", marks=pytest.mark.long),
    ],
)
def test_each_row_lands_once_when_drivers_are_killed(
    spark: SparkSession, tmp_path: Path, strategy: str, engine: str
) -> None:
    place = Load(tmp_path, "load")
    place.spark = spark
    place.configure(recovery=strategy, engine=engine)
    for number, point in enumerate(POINTS[strategy][: 1 if engine == "auto" and strategy == "replay" else None]):
        place.killed(f"killed {number}", point)
    done = account(place.run("last"))
    assert done["lost"] == done["absent"] == 0
    place.assert_exact(40)
