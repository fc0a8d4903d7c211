"""The rows of some runs leave a table whichever files hold them, and those of others stay in the same files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import from_arrow_schema
from tests.fixtures.deltas import marked

from sluice_spark.sinks.base import NOTHING
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.of_runs import OfRuns

SCHEMA = pa.schema([("n", pa.int64()), ("_run", pa.string())])


@pytest.mark.parametrize("partition_by", [[], ["_run"]])
def test_rows_of_runs_leave_a_table_once_and_no_others(tmp_path: Path, partition_by: list[str]) -> None:
    path = str(tmp_path / "table")
    for rows in ([(1, "a"), (2, "a")], [(3, "a"), (4, "b's"), (5, None), (6, "c d")], [(7, "x"), (8, None)]):
        data = pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)], SCHEMA)
        write_deltalake(path, data, mode="append", partition_by=partition_by or None)
    marked(path, "p", "sink")
    sink, columns = DeltaSink(path, "sluice:p:1", partition_by), from_arrow_schema(SCHEMA)
    gone = OfRuns([], runs=frozenset({"a", "b's", "c d", "nobody"}))
    for counts in ({}, None):
        assert sink.replace(gone, NOTHING, columns, 0, {"run": "r", "pipeline": "p"}, name="p-e1-000000") == counts
        left = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert sorted((row["n"], row["_run"]) for row in left) == [(5, None), (7, "x"), (8, None)]
        assert sink.version() == 0
