"""A Delta table by its path: stores that refuse it, and files that earlier versions of it need."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.fixtures.parquet import stage
from tests.unit.spark.sinks.delta.conftest import put, replace, rows, sink

from sluice.errors import ExitCode, SluiceError
from sluice.storage import file_system
from sluice_spark.sinks.delta.table import DeltaSink


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
