"""What a commit of the Delta sink lets in, takes for its own, and leaves alone; without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, rows, sink, staged

from sluice.errors import LeaseHeldError, SinkError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING, Fence, Staged
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice

# --- commits that lose their answer, or their files ----------------------------------------------------------------


def test_another_drivers_commit_is_not_taken_for_an_answer_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sink(tmp_path)
    put(table, 0)
    committed = DeltaTable.create_write_transaction

    def second(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        sink(tmp_path).commit(NOTHING, SCHEMA, 1, {"run": "faster"})
        committed(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", second)
    with pytest.raises(LeaseHeldError):
        put(table, 1)


@pytest.mark.parametrize(("spoil", "what"), [(Path.unlink, "is gone"), (lambda f: f.write_bytes(b"x"), "has 1 bytes")])
def test_staged_files_that_vanished_are_not_committed(tmp_path: Path, spoil: Callable[[Path], Any], what: str) -> None:
    table = sink(tmp_path)
    put(table, 0)
    files = staged(tmp_path, 1, 10, 20)
    spoil(tmp_path / files.files[0].path)
    with pytest.raises(SinkError, match=what):
        table.commit(files, SCHEMA, 1, {"run": "r"})
    assert table.version() == 0
    with pytest.raises(SinkError, match=what):
        table.admit(files)  # before another table's commit


# --- fences --------------------------------------------------------------------------------------------------------


def test_a_rival_that_commits_in_the_last_moment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = sink(tmp_path)
    put(live, 0)
    fence = Fence(live.table_version(), lambda note: note.get("interval") is not None)
    committed = DeltaTable.create_write_transaction

    def second(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        interval = DeltaSink(str(tmp_path), "sluice:p:interval:a/b")
        interval.commit(NOTHING, SCHEMA, 0, {"run": "march", "interval": "a/b"})
        committed(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", second)
    with pytest.raises(LeaseHeldError, match="run 'march' committed"):
        put(DeltaSink(str(tmp_path), "sluice:p:redriven"), 1, fence=fence)


# --- rows that somebody else has a hand in -------------------------------------------------------------------------


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


def test_rows_that_stay_are_written_again_when_a_vacuum_took_their_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sink(tmp_path)
    put(table, 0)
    kept = Slice.keep

    def vacuumed(self: Slice, root: str, *rest: Any) -> Staged:
        files = kept(self, root, *rest)
        monkeypatch.undo()
        DeltaTable(root).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return files

    monkeypatch.setattr(Slice, "keep", vacuumed)
    with pytest.raises(SinkError, match="is gone"):
        table.replace(Slice([OffsetRange("t", 0, 0, 3)]), NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001")
    assert ids(tmp_path) == list(range(10))
    gone = table.replace(Slice([OffsetRange("t", 0, 0, 3)]), NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001")
    assert gone == {("t", 0): 3}
    assert ids(tmp_path) == list(range(3, 10))


def test_a_row_without_metadata_is_nobodys_and_in_nobodys_way(tmp_path: Path) -> None:
    table = sink(tmp_path)
    put(table, 0)
    foreign = rows(0, 1).set_column(3, "_offset", pa.array([None], pa.int64()))
    foreign = foreign.set_column(4, "_timestamp", pa.array([None], pa.timestamp("us", "UTC")))
    write_deltalake(str(tmp_path), foreign, mode="append")
    everything = Slice([OffsetRange("t", 0, 0, 100)])
    assert len(table.held(everything)["t", 0]) == 10
    assert table.replace(everything, NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001") == {("t", 0): 10}
    assert ids(tmp_path) == [0]


def test_files_that_delta_rs_wrote_for_a_delete_are_taken_apart(tmp_path: Path) -> None:
    """They hold texts in another form."""
    table = sink(tmp_path)
    put(table, 0)
    DeltaTable(str(tmp_path)).delete("id = 5")
    assert table.replace(Slice([OffsetRange("t", 0, 0, 3)]), NOTHING, SCHEMA, 1, {"run": "r"}, name="p-e1-000001") == {
        ("t", 0): 3
    }
    assert ids(tmp_path) == [3, 4, 6, 7, 8, 9]
