"""How many records a batch has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fixtures.specs import GOOD, write

from sluice.pipeline import load
from sluice_spark.runs.batches import MicroBatches

UPSERT = "sink: {delta: {path: t, mode: upsert, key: [id]}}"


@pytest.mark.parametrize(
    ("sink", "arrow", "wanted", "limit"),
    [
        pytest.param("sink: {delta: {path: t}}", True, None, 5_000_000, id="arrow"),
        pytest.param("sink: {delta: {path: t}}", False, None, 500_000, id="spark"),
        pytest.param("sink: {delta: {path: t}}", True, 7, 7, id="as-wanted"),
        pytest.param(UPSERT, True, None, 500_000, id="merged-by-the-driver"),
        pytest.param(
            "sink: {postgres: {table: t, mode: upsert, key: [id]}}", True, None, 5_000_000, id="merged-by-the-database"
        ),
    ],
)
def test_batch_without_a_pace_is_as_large_as_memory_allows(
    tmp_path: Path, sink: str, arrow: bool, wanted: int | None, limit: int
) -> None:
    pipeline = load(write(tmp_path, GOOD.partition("sink:")[0] + sink))
    ledger = SimpleNamespace(paces=lambda *_, **__: [])
    context: Any = SimpleNamespace(pipeline=pipeline, ledger=ledger)
    nothing = cast(Any, None)
    batches = MicroBatches(context, nothing, nothing, nothing, nothing, [], nothing, wanted)
    assert batches.limit(arrow=arrow) == limit
