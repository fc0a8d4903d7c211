"""Records leave the quarantine by their offsets; those that a commit names are all there or refused as gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType
from tests.fixtures.books import span, split
from tests.unit.spark.batch.conftest import refuse

from sluice_spark.batch.quarantine import SCHEMA, opened, refused_again, take_out
from sluice_spark.sinks.base import NOTHING, TakenBackError
from sluice_spark.sinks.delta.table import DeltaSink


def quarantine(path: Path, epoch: int = 1) -> DeltaSink:
    return DeltaSink(str(path), f"sluice:p:{epoch}:quarantine")


def offsets(path: Path) -> list[tuple[int, int]]:
    rows = DeltaTable(str(path)).to_pyarrow_table().select(["_partition", "_offset"]).to_pylist()
    return sorted((row["_partition"], row["_offset"]) for row in rows)


def test_quarantine_loses_records_by_their_offsets_whatever_files_hold_them(tmp_path: Path) -> None:
    live = quarantine(tmp_path)
    for batch, found in enumerate(([(0, 3), (0, 4), (1, 4)], [(0, 9)])):
        assert live.commit(refuse(tmp_path, batch, found), SCHEMA, batch, {"run": "r"})
    DeltaTable(str(tmp_path)).optimize.compact()
    redriven = quarantine(tmp_path, 0)
    for _ in range(2):
        take_out(redriven, [span(4, 5), span(8, 20)], 0, "again", name="p-e0-000000")
        assert offsets(tmp_path) == [(0, 3), (1, 4)], "twice is as once"
    assert redriven.version() == 0
    take_out(redriven, [span(100, 101)], 1, "again", name="p-e0-000001")
    assert offsets(tmp_path) == [(0, 3), (1, 4)]


def test_quarantine_table_of_an_earlier_version_gets_new_columns_with_its_next_records(tmp_path: Path) -> None:
    older = StructType.fromJson(SCHEMA.jsonValue())
    older.fields[-1].dataType.elementType.fields.pop()
    path = tmp_path / "q"
    assert quarantine(path).commit(refuse(path, 0, [(0, 3)]), older, 0, {"run": "r"})
    assert "detail" not in DeltaTable(str(path)).schema().to_json()
    now = opened(str(path), "sluice:p:1:quarantine")
    now.check(SCHEMA)
    take_out(now, [span(100, 101)], 1, "r", name="p-e1-000001")
    assert "detail" not in DeltaTable(str(path)).schema().to_json(), "only with records"
    assert now.commit(refuse(path, 2, [(0, 4)]), SCHEMA, 2, {"run": "r"})
    rows = sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda row: row["_offset"])
    assert [row["_errors"][0] for row in rows] == [
        {"rule": "json", "severity": "critical", "column": None, "detail": None}
    ] * 2
    take_out(now, [span(3, 4)], 3, "r", name="p-e1-000003")
    assert offsets(path) == [(0, 4)]


def test_quarantine_finds_refused_records_in_their_folder_and_misses_removed_ones(tmp_path: Path) -> None:
    staged, sink = refuse(tmp_path, 0, [(0, 3), (0, 4)]), quarantine(tmp_path)
    note = {"version": 0, "run": "r", "refused": staged.folder}
    found = split(0, 8, written=6, quarantined=2)
    assert refused_again(sink, note, [found]).files == staged.files
    assert refused_again(sink, {"version": 0, "run": "r"}, [split(0, 5)]) == NOTHING
    more = [found, split(0, 1, 1, quarantined=1)]
    with pytest.raises(TakenBackError, match=r"3 records .* 2 ") as caught:
        refused_again(sink, note, more)
    assert "--recovery ignore_range" in caught.value.next_step
    assert refused_again(sink, note, more, forgo=True).rows == 2
