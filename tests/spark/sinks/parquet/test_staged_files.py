"""Staged files are read back, and files that another Spark rewrote say the same after a slice of them has left."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import Tally
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged_files import read_back

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, name STRING, _topic STRING, _partition INT, _offset BIGINT"


def stage(spark: SparkSession, root: Path, rows: list[tuple[object, ...]], *, by: tuple[str, ...] = (), files: int = 1):
    writer = spark.createDataFrame(rows, COLUMNS).repartition(files).write
    (writer.partitionBy(*by) if by else writer).parquet(str(root / "batches/b"))
    return read_back(str(root), "batches/b", offsets=True)


def test_parquet_partition_values_are_those_of_the_rows_not_of_the_path(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a b", "50%", "x=y/z", "ä:", None, "%20"]
    staged = stage(spark, tmp_path, [(n, name, "t", 0, n) for n, name in enumerate(names)], by=("name",))
    assert sorted(map(str, (f.partition_values["name"] for f in staged.files))) == sorted(map(str, names))
    assert None in [f.partition_values["name"] for f in staged.files]
    assert staged.tallies == {("t", 0): Tally(6, 6, 0, 5)}


def test_parquet_partitioning_by_metadata_columns_counts_the_same(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(o, "x", t, p, o) for t in ("a", "b-1.c") for p in (0, 1) for o in range(3 + p)]
    staged = stage(spark, tmp_path, rows, by=("_topic", "_partition"))
    assert staged.tallies == {(t, p): Tally(3 + p, 3 + p, 0, 2 + p) for t in ("a", "b-1.c") for p in (0, 1)}


def test_parquet_statistics_tell_the_truth_about_each_column(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "table"
    spark.sql(
        """SELECT id, IF(id > 1, NULL, concat('n', id)) AS name, id > 1 AS flag, repeat('x', 300) AS long,
        timestamp_micros(1356998400123456 + id) AS at, date_add(DATE'2013-01-01', CAST(id AS INT)) AS day,
        struct(id AS x) AS nested, array(id) AS list, CAST(NULL AS INT) AS nothing,
        't' AS _topic, 0 AS _partition, id AS _offset FROM range(1, 5, 1, 1)"""
    ).write.parquet(str(root / "b"))
    (file,) = read_back(str(root), "b", offsets=True).files
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 4
    assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (1, 4)
    assert (stats["minValues"]["name"], stats["maxValues"]["name"]) == ("n1", "n1")
    assert (stats["minValues"]["day"], stats["maxValues"]["day"]) == ("2013-01-02", "2013-01-05")
    assert stats["minValues"]["at"] == "2013-01-01T00:00:00.123Z"
    assert (stats["minValues"]["_offset"], stats["maxValues"]["_offset"]) == (1, 4)
    for column in ("flag", "long", "nested", "list", "nothing"):
        assert column not in stats["minValues"]
    assert stats["nullCount"]["name"] == 3
    assert stats["nullCount"]["nothing"] == 4


def test_parquet_statistics_survive_dates_beyond_those_of_python(spark: SparkSession, tmp_path: Path) -> None:
    """A producer that sends milliseconds where seconds are read: records like any other."""
    ms = 1_356_998_400_000
    far = [f"timestamp_seconds({ms})", f"timestamp_seconds(-{ms})", "DATE'+10000-01-01'", "DATE'-0005-01-01'"]
    columns = ", ".join(f"{each} AS at{n}" for n, each in enumerate(far))
    spark.sql(f"SELECT {columns}, 't' AS _topic, 0 AS _partition, 7L AS _offset").write.parquet(str(tmp_path / "b"))
    staged = read_back(str(tmp_path), "b", offsets=True)
    assert staged.tallies == {("t", 0): Tally(1, 1, 7, 7)}
    stats = json.loads(staged.files[0].stats)
    assert [name for name in stats["minValues"] if name.startswith("at")] == []
    assert [stats["nullCount"][f"at{n}"] for n in range(4)] == [0] * 4


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
def test_parquet_keys_are_the_same_however_a_file_has_its_times(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = spark.sql(ROWS)
    path = put(rows, tmp_path, "table", kind)
    put(rows.where("_offset = 0"), tmp_path, "batches/p-e1-000001-0badcafe", "TIMESTAMP_MICROS")
    staged = read_back(str(tmp_path), "batches/p-e1-000001-0badcafe", offsets=False)
    for keys, number in ((("start", "end", "until", "wall", "many"), 1), (("start", "end", "wall"), 4)):
        gone = RowsByKey.of(str(tmp_path), staged, keys)
        found = gone.find(str(tmp_path), pa.table({"path": [path]}))
        assert [f.rows for f in found.values()] == [number]
