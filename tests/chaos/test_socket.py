"""Lines of a socket: from its landing on each is there once, whatever is killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.lines import Server
from tests.fixtures.place import KeptPlace, account

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


@dataclass
class Wire(KeptPlace):
    """A pipeline that reads a socket."""

    port: int = field(default=1)

    def spec(self) -> dict[str, Any]:
        return {
            "source": {"socket": {"host": "127.0.0.1", "port": self.port, "max_records_per_batch": 40}},
            "decode": {"json": {"schema": "n BIGINT"}}, "recovery": "wal",
            "sink": {"delta": {"path": "out"}}, "quality": {"max_quarantined": "100%"},
        }  # fmt: skip


@pytest.mark.parametrize(
    "points",
    [
        ("position-committed",),
        pytest.param(
            ("rows-landed", "position-committed", "segments-staged", "before-seal", "sealed", "seal-recorded",
             "rows-staged", "sink-committed", "batch-recorded"),
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_what_was_landed_is_there_once(spark: SparkSession, tmp_path: Path, points: tuple[str, ...]) -> None:
    portions = [b"".join(b'{"n": %d}\n' % n for n in range(at, at + 30)) for at in range(0, 3000, 100)]
    with Server(portions[: len(points) + 1]) as server:
        place = Wire(tmp_path, "wire", port=server.port)
        place.spark = spark
        for number, point in enumerate(points):
            place.killed(f"killed {number}", point)
        done = account(place.run("last"))
    assert done["lost"] == done["absent"] == 0
    kept = [at * 100 for at, point in enumerate(points) if point != "rows-landed"] + [len(points) * 100]
    assert sorted(row["n"] for row in place.table("out")) == [n for at in kept for n in range(at, at + 30)]
    assert set(place.offsets("out").values()) == {1}
    place.audit()
