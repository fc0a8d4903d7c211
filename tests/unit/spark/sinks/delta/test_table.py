"""Files that a commit of the Delta sink adds, takes apart or misses, without a JVM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.parquet import stage
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, replace, rows, sink

from sluice.errors import SinkError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.parquet.slice import Slice


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


def test_delta_commits_no_staged_file_that_was_cut_off(tmp_path: Path) -> None:
    table = sink(tmp_path)
    put(table, 0)
    files = stage(tmp_path, 1, rows(10, 20))
    (tmp_path / files.files[0].path).write_bytes(b"x")
    for attempt in (lambda: table.commit(files, SCHEMA, 1, {"run": "r"}), lambda: table.admit(files)):
        with pytest.raises(SinkError, match="has 1 bytes"):
            attempt()
    assert table.version() == 0


def test_delta_writes_rows_again_that_a_vacuum_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = sink(tmp_path)
    put(table, 0)
    kept = Slice.keep

    def vacuumed(self: Slice, root: str, *rest: object) -> Staged:
        files = kept(self, root, *rest)
        monkeypatch.undo()
        DeltaTable(root).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return files

    monkeypatch.setattr(Slice, "keep", vacuumed)
    with pytest.raises(SinkError, match="is gone"):
        replace(table, 0, 3)
    assert ids(tmp_path) == list(range(10))
    assert replace(table, 0, 3) == {("t", 0): 3}
    assert ids(tmp_path) == list(range(3, 10))


def test_delta_rows_of_others_without_metadata_stay(tmp_path: Path) -> None:
    table = sink(tmp_path)
    put(table, 0)
    nothing = {"_offset": pa.nulls(1, pa.int64()), "_timestamp": pa.nulls(1, pa.timestamp("us", "UTC"))}
    write_deltalake(str(tmp_path), rows(0, 1, **nothing), mode="append")
    assert len(table.held(Slice([OffsetRange("t", 0, 0, 100)]))["t", 0]) == 10
    assert replace(table, 0, 100) == {("t", 0): 10}
    assert ids(tmp_path) == [0]


def test_delta_takes_files_apart_that_delta_rs_wrote_for_a_delete(tmp_path: Path) -> None:
    """They hold texts in another form."""
    table = sink(tmp_path)
    put(table, 0)
    DeltaTable(str(tmp_path)).delete("id = 5")
    assert replace(table, 0, 3) == {("t", 0): 3}
    assert ids(tmp_path) == [3, 4, 6, 7, 8, 9]
