"""What Spark says of its batches becomes what a run leaves behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sluice_spark.runs.measured import operators_of


def said(*operators: tuple[str, int, int, int]) -> Any:
    found = [
        SimpleNamespace(
            operatorName=name, numRowsUpdated=updated, numRowsRemoved=removed, memoryUsedBytes=10 * live,
            customMetrics={"rocksdbTotalBytesReadThroughIterator": live},
        )
        for name, live, updated, removed in operators
    ]  # fmt: skip
    return SimpleNamespace(stateOperators=found)


def test_the_last_batch_says_what_is_kept_and_all_say_what_they_changed() -> None:
    found = operators_of([said(("save", 5, 5, 0)), said(("save", 7, 3, 1)), said(("save", 4, 0, 3))])
    assert found == [{"operator": "save", "live": 4, "updated": 8, "removed": 4, "memory": 40}]
    assert operators_of([]) == []
    assert operators_of([said()]) == []
