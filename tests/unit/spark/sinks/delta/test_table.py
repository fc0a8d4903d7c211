"""Files of a Delta table that a commit adds, takes apart or misses, and stores that refuse it; without a JVM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.parquet import stage
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, replace, rows, sink

from sluice.errors import ExitCode, SinkError, SluiceError
from sluice.ranges import OffsetRange
from sluice.storage import file_system
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.delta.table import DeltaSink
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


@pytest.mark.parametrize(
    ("wrong", "bucket", "code", "token"),
    [
        pytest.param({"AWS_SECRET_ACCESS_KEY": "wrong"}, "lake", ExitCode.NOT_AUTHORIZED, "SignatureDoesNotMatch",
                     id="secret"),
        pytest.param({"AWS_ACCESS_KEY_ID": "nobody"}, "lake", ExitCode.NOT_AUTHORIZED, "InvalidAccessKeyId", id="key"),
        pytest.param({}, "nowhere", ExitCode.SINK_FAILED, "no bucket 'nowhere'", id="bucket"),
    ],
)  # fmt: skip
def test_delta_table_in_a_store_that_refuses_is_an_error_of_its_type(
    guarded_store: dict[str, str], monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], bucket: str,
    code: ExitCode, token: str,
) -> None:  # fmt: skip
    for name, value in {**guarded_store, **wrong}.items():
        monkeypatch.setenv(name, value)
    file_system.__globals__["_s3"].cache_clear()  # of other credentials
    with pytest.raises(SluiceError) as refused:
        DeltaSink(f"s3a://{bucket}/table", "app").version()
    assert (refused.value.exit_code, token in refused.value.what) == (code, True)
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize("kind", ["append", "replace"])
def test_delta_sweep_spares_files_that_only_earlier_versions_have(tmp_path: Path, kind: str) -> None:
    """A driver died behind its commit, others compacted the table, and the next run sweeps what it left."""
    put(sink(tmp_path), 0)
    left = stage(tmp_path, 1, rows(10, 20))
    table = sink(tmp_path)
    assert put(table, 1) if kind == "append" else replace(table, 2, 5, stage(tmp_path, 1, rows(2, 5)))
    version = DeltaTable(tmp_path).version()
    DeltaTable(tmp_path).optimize.compact()
    sink(tmp_path).sweep("p-e1-000001")
    assert not (tmp_path / left.files[0].path).parent.exists()
    assert DeltaTable(tmp_path, version=version).to_pyarrow_table().num_rows == (20 if kind == "append" else 10)
    DeltaTable(tmp_path).restore(version)
