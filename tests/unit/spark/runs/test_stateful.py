"""What a run with windows does before it reads anything: it makes up what a dead driver did not plan."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.fixtures.books import Place, split

from sluice.errors import CheckpointError, ConfigError
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice.run.checkpoint import Checkpoint
from sluice_spark.runs.stateful import (
    _refuse_other_types,
    _refuse_to_empty,
    _refuse_torn,
    plan_closing,
)  # fmt: skip
from sluice_spark.sinks.delta.table import DeltaSink


def tables(root: Path, watermarks: list[int], committed: dict[int, int], planned_at: int = 0) -> Any:
    """Make a checkpoint: of each batch the watermark, of each commit the next one; each batch reads ten records."""
    for folder in ("offsets", "commits"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for batch, watermark in enumerate(watermarks):
        told = {"batchWatermarkMs": watermark, "batchTimestampMs": planned_at, "conf": {}}
        ends = {"t": {"0": 10 * (batch + 1)}}
        (root / f"offsets/{batch}").write_text(f"v1\n{json.dumps(told)}\n{json.dumps(ends)}")
    for batch, following in committed.items():
        (root / f"commits/{batch}").write_text(f"v1\n{json.dumps({'nextBatchWatermarkMs': following})}")
    return SimpleNamespace(checkpoint=Checkpoint(str(root)))


@pytest.mark.parametrize(
    ("aim", "planned"),
    [([], True), ([OffsetRange("t", 0, 0, 20)], True), ([OffsetRange("t", 0, 10, 21)], False),
     ([OffsetRange("t", 0, 0, 20), OffsetRange("t", 1, 0, 1)], False)],
)  # fmt: skip
def test_the_closing_batch_is_made_up_unless_the_dead_run_had_more_to_read(
    tmp_path: Path, aim: list[OffsetRange], planned: bool
) -> None:
    found = tables(tmp_path, [0, 500], {0: 500, 1: 900})
    plan_closing(found, aim)
    assert found.checkpoint.open_batch() == (2 if planned else None)


def test_nothing_is_made_up_where_nothing_is_due(tmp_path: Path) -> None:
    found = tables(tmp_path, [0, 900], {0: 900, 1: 900})
    plan_closing(found, [])
    assert found.checkpoint.open_batch() is None


def test_types_that_were_noted_before_there_was_state_bind_nobody(tmp_path: Path) -> None:
    asked: Any = SimpleNamespace(name="p", file=Path("p.yaml"), no_rebuilding="sessions have no bound")
    found = SimpleNamespace(checkpoint=Checkpoint(str(tmp_path)), epoch=SimpleNamespace(number=1))
    _refuse_other_types(asked, found, {"v": "int"})  # this run died before it planned a batch
    _refuse_other_types(asked, found, {"v": "bigint"})
    assert found.checkpoint.types() == {"v": "bigint"}
    tables(tmp_path, [0], {0: 500})
    with pytest.raises(CheckpointError, match="v was BIGINT and is INT"):
        _refuse_other_types(asked, found, {"v": "int"})


def test_state_of_several_batches_that_a_power_cut_emptied_is_refused_with_the_way_out(tmp_path: Path) -> None:
    found = tables(tmp_path, [0, 900], {0: 900, 1: 900})
    asked: Any = SimpleNamespace(name="p", no_rebuilding=None)
    share = tmp_path / "state/0/0"
    share.mkdir(parents=True)
    for version in (1, 2):
        (share / f"{version}.changelog").write_text("v")
    _refuse_torn(asked, found)
    for version in (1, 2):
        (share / f"{version}.changelog").write_text("")
    assert found.checkpoint.mend(1) == []
    with pytest.raises(CheckpointError, match="version 1, 2 of the state") as caught:
        _refuse_torn(asked, found)
    assert "sluice reset p --reason TEXT --rebuild-state; or drop what is kept" in caught.value.next_step


def test_a_first_result_takes_the_place_of_nobodys_rows(tmp_path: Path) -> None:
    place = Place(tmp_path)
    pipeline, sink = load(place.file), DeltaSink(str(tmp_path / "t"), "sluice:p:1")
    _refuse_to_empty(place.ledger, pipeline, sink)
    write_deltalake(sink.path, pa.table({"n": [1]}))
    sink = DeltaSink(sink.path, "sluice:p:1")
    with pytest.raises(ConfigError, match="has rows, and none of them is of pipeline 'p'"):
        _refuse_to_empty(place.ledger, pipeline, sink)
    place.commit("a", split(0, 5))
    _refuse_to_empty(place.ledger, pipeline, sink)
