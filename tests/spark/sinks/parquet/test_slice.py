"""Files that another Spark rewrote, with its own way to write times, are understood, and say the same afterwards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.ranges import OffsetRange
from sluice_spark.sinks.parquet.keyed import Keyed
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged import read_back

ROWS = """
SELECT 't' AS _topic, 0 AS _partition, id AS _offset, TIMESTAMP '2026-03-01 12:00:00.123456' AS _timestamp,
  TIMESTAMP '2026-03-01 12:00:00Z' AS start, TIMESTAMP '2026-03-01 13:00:00Z' AS end,
  CASE id WHEN 0 THEN TIMESTAMP '9999-12-31 23:59:59.999Z' WHEN 1 THEN TIMESTAMP '0001-01-01 00:00:00Z' END AS until,
  TIMESTAMP_NTZ '9999-12-31 23:59:59' AS wall, array(struct(TIMESTAMP '9999-12-31 00:00:00Z' AS at)) AS many
FROM range(0, 4)
"""


def put(rows: DataFrame, root: Path, folder: str, kind: str) -> str:
    """Write rows to one file; return its path below the root."""
    spark = rows.sparkSession
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    spark.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED")
    try:
        rows.coalesce(1).write.parquet(str(root / folder))
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", before)
        spark.conf.unset("spark.sql.parquet.int96RebaseModeInWrite")
    (file,) = (root / folder).glob("*.parquet")
    return str(file.relative_to(root))


def said(rows: DataFrame, path: Path) -> list[str]:
    """Return what Spark reads from a file, as text: Python knows no such years."""
    frame = rows.sparkSession.read.schema(rows.schema).parquet(str(path)).orderBy("_offset")
    return [row[0] for row in frame.selectExpr("CAST(struct(*) AS STRING)").collect()]


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_parquet_slice_keeps_the_times_of_rows_that_stay(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = spark.sql(ROWS)
    path = put(rows, tmp_path, "table", kind)
    before = said(rows, tmp_path / path)[:3]
    gone = Slice([OffsetRange("t", 0, 3, 9)])
    found = gone.find(str(tmp_path), pa.table({"path": [path]}))
    assert {p: f.rows for p, f in found.items()} == {path: 1}
    (kept,) = gone.keep(str(tmp_path), "p-e1-000001", found).files
    assert said(rows, tmp_path / kept.path) == before
    found = (again := Slice([OffsetRange("t", 0, 2, 3)])).find(str(tmp_path), pa.table({"path": [kept.path]}))
    (kept,) = again.keep(str(tmp_path), "p-e1-000002", found).files
    assert said(rows, tmp_path / kept.path) == before[:2]


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MILLIS"])
def test_parquet_slice_has_the_same_keys_however_a_file_has_its_times(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    rows = spark.sql(ROWS)
    path = put(rows, tmp_path, "table", kind)
    put(rows.where("_offset = 0"), tmp_path, "batches/p-e1-000001-0badcafe", "TIMESTAMP_MICROS")
    staged = read_back(str(tmp_path), "batches/p-e1-000001-0badcafe", offsets=False)
    for keys, number in ((("start", "end", "until", "wall", "many"), 1), (("start", "end", "wall"), 4)):
        gone = Keyed.of(str(tmp_path), staged, keys)
        found = gone.find(str(tmp_path), pa.table({"path": [path]}))
        assert [f.rows for f in found.values()] == [number]
