"""Delta commits that add columns to a table with the rows that have them, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType
from tests.fixtures.parquet import stage
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, replace, rows, sink

from sluice.errors import ConfigError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.rows_by_run import RowsByRun
from sluice_spark.sinks.parquet.rows_by_time import RowsByTime
from sluice_spark.sinks.parquet.slice import Slice


def taxed(first: int, last: int) -> pa.Table:
    return rows(first, last, tax=pa.array(range(first, last), pa.int64()))


WIDER = from_arrow_schema(taxed(0, 0).schema)


def evolving(path: Path, writer: str = "p:1", by: tuple[str, ...] = ()) -> DeltaSink:
    return sink(path, writer, evolve="add", partition_by=by)


def actions(path: Path, version: int) -> list[str]:
    lines = (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return sorted(next(iter(json.loads(line))) for line in lines)


def values(path: Path) -> dict[int, int | None]:
    table = DeltaTable(str(path)).to_pyarrow_table()
    return dict(zip(table["id"].to_pylist(), table["tax"].to_pylist(), strict=True))


def test_delta_commit_adds_columns_and_rows_at_once(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    table = evolving(tmp_path)
    table.check(WIDER)
    before = DeltaTable(str(tmp_path)).version()
    assert put(table, 1, taxed(10, 20)) is True
    assert DeltaTable(str(tmp_path)).version() == before + 1
    assert actions(tmp_path, before + 1) == ["add", "commitInfo", "metaData", "txn"]
    assert values(tmp_path) == {n: n if n >= 10 else None for n in range(20)}
    assert table.evolved(1) == [{"column": "tax", "type": "bigint"}]
    assert table.evolved(0) == sink(tmp_path).evolved(1) == []
    assert put(table, 2, taxed(20, 30)) is True
    assert actions(tmp_path, before + 2) == ["add", "commitInfo", "txn"]
    assert table.evolved(2) == []
    assert [n["version"] for n in table.notes(-1)] == [2, 1, 0]
    assert evolving(tmp_path).examine() == [], "the commit is the pipeline's own"


def test_delta_adds_no_column_without_evolve_or_rows(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    odd = StructType([StructField("$oid", StringType()), StructField("b", ArrayType(LongType()))])
    for more, statement in (
        ([], "ADD COLUMNS (tax bigint)"),
        ([StructField("_id", odd)], "ADD COLUMNS (tax bigint, _id struct<`$oid`:string,b:array<bigint>>)"),
    ):
        with pytest.raises(ConfigError, match="tax: only in the pipeline") as refused:
            sink(tmp_path).check(StructType([*WIDER.fields, *more]))
        assert statement in refused.value.next_step
        assert "sink.delta.evolve: add" in refused.value.next_step
    evolving(tmp_path).commit(NOTHING, WIDER, 1, {"run": "r"})
    assert "tax" not in [f.name for f in DeltaTable(str(tmp_path)).schema().fields]


def test_delta_table_of_a_user_with_partitions_keeps_its_description_when_columns_are_added(tmp_path: Path) -> None:
    write_deltalake(
        str(tmp_path), rows(0, 3), partition_by=["_run"], name="orders", description="of 2026",
        configuration={"delta.logRetentionDuration": "interval 90 days"},
    )  # fmt: skip
    staged = stage(tmp_path, 0, taxed(3, 6).drop_columns(["_run"]), below=["_run=r0"])
    assert evolving(tmp_path, by=("_run",)).commit(staged, WIDER, 0, {"run": "r0"})
    assert values(tmp_path) == {0: None, 1: None, 2: None, 3: 3, 4: 4, 5: 5}
    metadata = DeltaTable(str(tmp_path)).metadata()
    assert (metadata.name, metadata.description, metadata.partition_columns) == ("orders", "of 2026", ["_run"])
    assert metadata.configuration["delta.logRetentionDuration"] == "interval 90 days"


def test_delta_table_of_a_user_without_sluices_columns_gets_them_and_keeps_its_rows(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows(0, 3).select(["id"]))
    table = evolving(tmp_path)
    assert put(table, 0, rows(3, 6))
    every = Slice([OffsetRange("t", 0, 0, 9)])
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("id")["_run"].to_pylist() == [None] * 3 + ["r"] * 3
    assert list(table.held(every)["t", 0]) == [3, 4, 5]
    for of_none in (RowsByRun((), runs=frozenset(["other"])), RowsByTime((), 0, 1, column="_timestamp")):
        assert table.held(of_none) == {}


def test_delta_commits_that_add_one_column_both_get_in(tmp_path: Path, before_commits: Callable[..., None]) -> None:
    put(sink(tmp_path), 0)
    before_commits(lambda: put(evolving(tmp_path, "p:1:other"), 0, taxed(50, 60)))
    table = evolving(tmp_path)
    assert put(table, 1, taxed(10, 20)) is True
    assert values(tmp_path) == {n: n if n >= 10 else None for n in [*range(20), *range(50, 60)]}
    assert table.evolved(1) == [], "the other one added it"


def test_delta_commit_is_refused_if_others_added_its_column_with_another_type(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    table = evolving(tmp_path)
    table.check(WIDER)
    DeltaTable(str(tmp_path)).alter.add_columns([Field("tax", PrimitiveType("string"))])
    with pytest.raises(ConfigError, match="tax: string in the table, bigint in the pipeline"):
        put(table, 1, taxed(10, 20))
    assert table.version() == 0


def test_delta_replacement_adds_columns_first(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    table = evolving(tmp_path, "p:1:interval:x")
    assert replace(table, 0, 5, stage(tmp_path, 7, taxed(0, 5)), WIDER, batch=0) == {("t", 0): 5}
    assert values(tmp_path) == {n: n if n < 5 else None for n in range(10)}
    assert table.evolved(0) == [{"column": "tax", "type": "bigint"}]
    assert [n["version"] for n in table.notes(-1)] == [0], "adding columns is no batch"
    assert sink(tmp_path).examine() == [], "both commits are the pipeline's own"


def test_delta_check_refuses_columns_of_others_and_a_commit_does_not(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    DeltaTable(str(tmp_path)).alter.add_columns([Field("later", PrimitiveType("string"))])
    assert put(evolving(tmp_path), 1)
    with pytest.raises(ConfigError, match="later: only in the table"):
        evolving(tmp_path).check(StructType([*SCHEMA.fields, StructField("newer", StringType())]))
