"""Rows that leave Parquet files: a slice of offsets and times, rows of keys, rows of runs."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import from_arrow_schema
from tests.fixtures.deltas import marked
from tests.fixtures.parquet import stage

from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING, Staged
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey, told
from sluice_spark.sinks.parquet.rows_by_run import RowsByRun
from sluice_spark.sinks.parquet.slice import Slice


def test_keys_are_told_that_python_has_no_dates_for() -> None:
    far = pa.array([3_000_000, None, -5], pa.int32()).cast(pa.date32())
    assert told(far).to_pylist() == [3_000_000, None, -5]
    within = pa.StructArray.from_arrays([far, pa.ListArray.from_arrays([0, 1, 2, 3], far)], ["d", "l"])
    assert told(within).to_pylist()[0] == {"d": 3_000_000, "l": [3_000_000]}


BOUNDS = {
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": pa.timestamp("us", "UTC"),
}
BEGIN = 1_767_225_600_000


def bounds(chance: random.Random) -> dict[str, list[Any]]:
    """Return the least and the greatest value of each column of a file; some are missing."""
    topic, partition, offset = chance.choice("abc"), chance.randrange(3), chance.randrange(100)
    time = (BEGIN + chance.randrange(10_000)) * 1000
    made = {
        "_topic": [topic, chance.choice(["c", topic])],
        "_partition": [partition] * 2,
        "_offset": [offset, offset + chance.randrange(20)],
        "_timestamp": [time, time + chance.randrange(2000) * 1000],
    }
    return {column: [v if chance.random() > 0.05 else None for v in pair] for column, pair in made.items()}


def may_hold(file: dict[str, list[Any]], gone: Slice) -> bool:
    def outside(column: str, first: Any, last: Any) -> bool:
        low, high = file.get(column, [None, None])
        return (low is not None and low > last) or (high is not None and high < first)

    return not outside("_timestamp", gone.start * 1000 - 1000, gone.end * 1000 - 1) and any(
        not outside("_topic", r.topic, r.topic)
        and not outside("_partition", r.partition, r.partition)
        and not outside("_offset", r.start, r.end - 1)
        for r in gone.ranges
    )


def test_slice_chooses_files_as_a_look_at_each_would() -> None:
    chance = random.Random(7)
    for _ in range(200):
        left_out = chance.choice([*BOUNDS, None])
        known = [column for column in BOUNDS if column != left_out]
        files = [{column: pair for column, pair in bounds(chance).items() if column in known} for _ in range(30)]
        table = {"path": list(map(str, range(30)))} | {
            f"{end}.{c}": pa.array([f[c][n] for f in files], BOUNDS[c])
            for c in known
            for n, end in enumerate(("min", "max"))
        }
        ranges = [OffsetRange(chance.choice("abc"), chance.randrange(3), at := chance.randrange(100), at + 10)
                  for _ in range(2)]  # fmt: skip
        start = BEGIN + chance.randrange(10_000)
        gone = Slice(ranges, start, start + chance.randrange(1, 1000))
        assert gone._may_hold(pa.table(table)).tolist() == [may_hold(file, gone) for file in files]


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCHEMA = pa.schema(
    [("start", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.float64()), ("m", pa.decimal128(5, 2)),
     ("n", pa.int64())]
)  # fmt: skip

VIEWS = SCHEMA.set(1, pa.field("k", pa.string_view()))
"""As delta-rs rewrites a file for a DELETE or an UPDATE."""


def put(root: Path, batch: int, *rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> Staged:
    columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
    return stage(root, batch, pa.table(columns, schema), offsets=False)


@pytest.mark.parametrize("schema", [SCHEMA, VIEWS], ids=["plain", "views"])
@pytest.mark.parametrize("keys", [("start", "k", "v", "m"), ("start",)])
def test_keyed_rows_leave_and_rows_of_other_keys_stay(tmp_path: Path, keys: tuple[str, ...], schema: pa.Schema) -> None:
    one = Decimal("1.00")
    staged = put(tmp_path, 1, (NOON, None, math.nan, one, 9), (NOON, "a", 0.5, None, 9))
    table = [
        (NOON, None, math.nan, one, 1), (NOON, "a", 0.5, None, 2), (NOON, "None", 0.5, None, 3),
        (NOON, "a", None, None, 4), (NOON + HOUR, "a", 0.5, None, 5),
        (NOON + timedelta(microseconds=1), "a", 0.5, None, 6),
    ]  # fmt: skip
    paths = [
        put(tmp_path, 0, *rows, schema=kinds).files[0].path
        for rows, kinds in ((table, schema), ([(NOON + HOUR, "b", 1.0, None, 7)], SCHEMA))
    ]
    gone = RowsByKey.of(str(tmp_path), staged, keys)
    found = gone.find(str(tmp_path), pa.table({"path": paths}))
    assert list(found) == paths[:1]
    (file,) = gone.keep(str(tmp_path), "p-e1-000001", found).files
    assert file.path.startswith("batches/p-e1-000001-")
    left = pq.read_table(tmp_path / file.path).column("n").to_pylist()
    assert left == ([3, 4, 5, 6] if len(keys) > 1 else [5, 6])
    assert RowsByKey((), keys=("start",)).find(str(tmp_path), pa.table({"path": paths})) == {}, "no key, no row"


RUNS = pa.schema([("n", pa.int64()), ("_run", pa.string())])


@pytest.mark.parametrize("partition_by", [[], ["_run"]])
def test_rows_of_runs_leave_a_table_once_and_no_others(tmp_path: Path, partition_by: list[str]) -> None:
    path = str(tmp_path / "table")
    for rows in ([(1, "a"), (2, "a")], [(3, "a"), (4, "b's"), (5, None), (6, "c d")], [(7, "x"), (8, None)]):
        data = pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), RUNS, strict=True)], RUNS)
        write_deltalake(path, data, mode="append", partition_by=partition_by or None)
    marked(path, "p", "sink")
    sink, columns = DeltaSink(path, "sluice:p:1", partition_by), from_arrow_schema(RUNS)
    gone = RowsByRun([], runs=frozenset({"a", "b's", "c d", "nobody"}))
    for counts in ({}, None):
        assert sink.replace(gone, NOTHING, columns, 0, {"run": "r", "pipeline": "p"}, name="p-e1-000000") == counts
        left = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert sorted((row["n"], row["_run"]) for row in left) == [(5, None), (7, "x"), (8, None)]
        assert sink.version() == 0
