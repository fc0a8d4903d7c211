"""Reading staged files back: counts, doubled offsets, partition values, statistics."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sluice_spark.sinks.base import Tally
from sluice_spark.sinks.parquet import staged as staged_files
from sluice_spark.sinks.parquet.staged import read_back

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, name STRING, _topic STRING, _partition INT, _offset BIGINT"


def stage(spark: SparkSession, root: Path, rows: list[tuple[object, ...]], *, by: tuple[str, ...] = (), files: int = 1):
    writer = spark.createDataFrame(rows, COLUMNS).repartition(files).write
    (writer.partitionBy(*by) if by else writer).parquet(str(root / "batches/b"))
    return read_back(str(root), "batches/b", offsets=True)


@pytest.mark.parametrize("files", [1, 4])
def test_rows_and_offsets_are_counted_per_partition(spark: SparkSession, tmp_path: Path, files: int) -> None:
    rows = [(o, "x", t, p, o) for t, p, first, last in (("a", 0, 5, 15), ("a", 1, 0, 3), ("b", 0, 7, 8))
            for o in range(first, last)]  # fmt: skip
    staged = stage(spark, tmp_path, rows, files=files)
    assert staged.rows == 14
    assert staged.tallies == {
        ("a", 0): Tally(10, 10, 5, 14), ("a", 1): Tally(3, 3, 0, 2), ("b", 0): Tally(1, 1, 7, 7),
    }  # fmt: skip
    for file in staged.files:
        assert (tmp_path / file.path).stat().st_size == file.size
        assert abs((tmp_path / file.path).stat().st_mtime * 1000 - file.modified) < 2


@pytest.mark.parametrize("files", [1, 3])
def test_an_offset_that_stands_twice_is_seen_in_one_file_and_across_files(
    spark: SparkSession, tmp_path: Path, files: int
) -> None:
    staged = stage(spark, tmp_path, [(o, "x", "t", 0, o) for o in [*range(10), 3, 9]], files=files)
    assert staged.tallies == {("t", 0): Tally(12, 10, 0, 9)}


def written(root: Path, *files: list[int] | np.ndarray) -> dict[tuple[str, int], Tally]:
    """Tally files of one partition, without Spark."""
    (root / "b").mkdir()
    for number, offsets in enumerate(files):
        count = len(offsets)
        columns = {
            "_topic": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), ["t"]),
            "_partition": np.zeros(count, dtype=np.int32),
            "_offset": np.asarray(offsets, dtype=np.int64),
        }
        pq.write_table(pa.table(columns), root / "b" / f"{number}.parquet", row_group_size=100_000)
    return dict(read_back(str(root), "b", offsets=True).tallies)


@pytest.mark.parametrize("seed", range(40))
def test_offsets_in_any_order_over_any_files_are_counted_exactly(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(staged_files, "_PIECE", draw.choice([7, 100, 1 << 26]))
    top = draw.choice([60, 1000, 10**12])
    files = [[draw.randint(0, top) for _ in range(draw.randint(1, 40))] for _ in range(draw.randint(1, 4))]
    if draw.random() < 0.5:
        files = [sorted(set(f)) for f in files]
    if draw.random() < 0.3:
        files = [[n + 10 * top * i for n in f] for i, f in enumerate(files)]
    everything = [n for f in files for n in f]
    wanted = Tally(len(everything), len(set(everything)), min(everything), max(everything))
    assert written(tmp_path, *files) == {("t", 0): wanted}


@pytest.mark.parametrize("order", ["one behind the other", "in turn", "backwards"])
def test_what_reading_back_holds_in_memory_does_not_grow_with_the_rows(tmp_path: Path, order: str) -> None:
    count = 4_000_000
    numbers = np.arange(count, dtype=np.int64)
    parts = {
        "one behind the other": [numbers[: count // 2], numbers[count // 2 :]],
        "in turn": [numbers[::2], numbers[1::2]],
        "backwards": [numbers[::-1]],
    }[order]
    written_first = written(tmp_path, *parts)
    tracemalloc.start()
    try:
        assert read_back(str(tmp_path), "b", offsets=True).tallies == written_first
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written_first == {("t", 0): Tally(count, count, 0, count - 1)}
    assert held < count * 4, f"{held / count:.1f} bytes a row"


def test_a_topic_is_found_by_its_name_not_by_its_place(spark: SparkSession, tmp_path: Path) -> None:
    staged = stage(spark, tmp_path, [(n, None, "ba"[n % 2], n % 3, n) for n in range(60)])
    assert {key: t.rows for key, t in staged.tallies.items()} == {(t, p): 10 for t in "ab" for p in range(3)}


def test_partition_values_are_what_was_written_not_how_the_path_says_it(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a b", "50%", "x=y/z", "ä:", None, "%20"]
    staged = stage(spark, tmp_path, [(n, name, "t", 0, n) for n, name in enumerate(names)], by=("name",))
    assert sorted(map(str, (f.partition_values["name"] for f in staged.files))) == sorted(map(str, names))
    assert None in [f.partition_values["name"] for f in staged.files]
    assert staged.tallies == {("t", 0): Tally(6, 6, 0, 5)}


def test_partitioning_by_metadata_columns_counts_the_same(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(o, "x", t, p, o) for t in ("a", "b-1.c") for p in (0, 1) for o in range(3 + p)]
    staged = stage(spark, tmp_path, rows, by=("_topic", "_partition"))
    assert staged.tallies == {(t, p): Tally(3 + p, 3 + p, 0, 2 + p) for t in ("a", "b-1.c") for p in (0, 1)}


def test_nothing_staged_is_no_file(spark: SparkSession, tmp_path: Path) -> None:
    staged = stage(spark, tmp_path, [])
    assert (staged.rows, staged.files, staged.tallies) == (0, (), {})


def test_statistics_tell_the_truth_about_each_column(spark: SparkSession, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "far",
    [
        "timestamp_seconds(1356998400000)",
        "timestamp_seconds(-1356998400000)",
        "DATE'+10000-01-01'",
        "DATE'-0005-01-01'",
    ],
)
def test_a_date_beyond_what_python_knows_stops_nothing(spark: SparkSession, tmp_path: Path, far: str) -> None:
    """A producer that sends milliseconds where seconds are read: a record like any other."""
    spark.sql(f"SELECT {far} AS at, 't' AS _topic, 0 AS _partition, 7L AS _offset").write.parquet(str(tmp_path / "b"))
    staged = read_back(str(tmp_path), "b", offsets=True)
    assert staged.tallies == {("t", 0): Tally(1, 1, 7, 7)}
    stats = json.loads(staged.files[0].stats)
    assert "at" not in stats["minValues"]
    assert stats["nullCount"]["at"] == 0
