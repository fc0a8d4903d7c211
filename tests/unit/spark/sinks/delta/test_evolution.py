"""Commits that add columns to a table: with the rows, or not at all; without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, rows, sink, staged

from sluice.errors import ConfigError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import NOTHING
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged import read_back

WIDER = StructType([*SCHEMA.fields, StructField("tax", LongType())])


def evolving(path: Path, suffix: str = "") -> DeltaSink:
    return DeltaSink(str(path), f"sluice:p:1{suffix}", evolve="add")


def wider(path: Path, batch: int, first: int, last: int) -> Any:
    folder = f"batches/p-e1-{batch:06d}-0123456{batch}"
    (path / folder).mkdir(parents=True)
    table = rows(first, last).append_column("tax", pa.array(range(first, last), pa.int64()))
    pq.write_table(table, path / folder / "part.parquet")
    return read_back(str(path), folder, offsets=True)


def actions(path: Path, version: int) -> list[str]:
    lines = (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return sorted(next(iter(json.loads(line))) for line in lines)


def values(path: Path) -> dict[int, int | None]:
    table = DeltaTable(str(path)).to_pyarrow_table()
    return dict(zip(table["id"].to_pylist(), table["tax"].to_pylist(), strict=True))


def test_columns_and_rows_are_one_commit(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    table = evolving(tmp_path)
    table.check(WIDER)
    before = DeltaTable(str(tmp_path)).version()
    assert table.commit(wider(tmp_path, 1, 10, 20), WIDER, 1, {"run": "r1"}) is True
    assert DeltaTable(str(tmp_path)).version() == before + 1
    assert actions(tmp_path, before + 1) == ["add", "commitInfo", "metaData", "txn"]
    assert values(tmp_path) == {n: n if n >= 10 else None for n in range(20)}
    assert table.evolved(1) == [{"column": "tax", "type": "bigint"}]
    assert table.evolved(0) == sink(tmp_path).evolved(1) == []
    assert table.commit(wider(tmp_path, 2, 20, 30), WIDER, 2, {"run": "r2"}) is True
    assert actions(tmp_path, before + 2) == ["add", "commitInfo", "txn"]
    assert table.evolved(2) == []
    assert [n["version"] for n in table.notes(-1)] == [2, 1, 0]
    assert evolving(tmp_path).examine() == [], "the commit is the pipeline's own"


def test_nothing_is_added_unless_the_file_says_so_nor_by_a_batch_without_rows(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    with pytest.raises(ConfigError, match="tax: only in the pipeline") as refused:
        sink(tmp_path).check(WIDER)
    assert "ADD COLUMNS (tax bigint)" in refused.value.next_step
    odd = StructType([StructField("$oid", StringType()), StructField("b", ArrayType(LongType()))])
    nested = StructType([*WIDER.fields, StructField("_id", odd)])
    with pytest.raises(ConfigError) as refused:
        sink(tmp_path).check(nested)
    assert "ADD COLUMNS (tax bigint, _id struct<`$oid`:string,b:array<bigint>>)" in refused.value.next_step
    evolving(tmp_path).commit(NOTHING, WIDER, 1, {"run": "r"})
    assert "tax" not in [f.name for f in DeltaTable(str(tmp_path)).schema().fields]


def test_a_table_with_partitions_and_of_a_user_keeps_what_it_says(tmp_path: Path) -> None:
    write_deltalake(
        str(tmp_path), rows(0, 3), partition_by=["_run"], name="orders", description="of 2026",
        configuration={"delta.logRetentionDuration": "interval 90 days"},
    )  # fmt: skip
    table = DeltaSink(str(tmp_path), "sluice:p:1", ["_run"], evolve="add")
    folder = "batches/p-e1-000000-01234560"
    (tmp_path / folder / "_run=r0").mkdir(parents=True)
    data = rows(3, 6).drop_columns(["_run"]).append_column("tax", pa.array([1, 2, 3]))
    pq.write_table(data, tmp_path / folder / "_run=r0" / "part.parquet")
    staged_there = read_back(str(tmp_path), folder, offsets=True)
    assert table.commit(staged_there, WIDER, 0, {"run": "r0"})
    assert values(tmp_path) == {0: None, 1: None, 2: None, 3: 1, 4: 2, 5: 3}
    metadata = DeltaTable(str(tmp_path)).metadata()
    assert (metadata.name, metadata.description, metadata.partition_columns) == ("orders", "of 2026", ["_run"])
    assert metadata.configuration["delta.logRetentionDuration"] == "interval 90 days"


def test_of_two_commits_that_add_the_same_column_both_get_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(sink(tmp_path), 0)
    committed = DeltaTable.create_write_transaction

    def second(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        evolving(tmp_path, ":other").commit(wider(tmp_path, 5, 50, 60), WIDER, 0, {"run": "faster"})
        committed(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", second)
    table = evolving(tmp_path)
    assert table.commit(wider(tmp_path, 1, 10, 20), WIDER, 1, {"run": "r1"}) is True
    assert values(tmp_path) == {n: n if n >= 10 else None for n in [*range(20), *range(50, 60)]}
    assert table.evolved(1) == [], "the other one added it"


def test_a_column_of_another_type_that_others_added_meanwhile_stops_the_commit(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    table = evolving(tmp_path)
    table.check(WIDER)
    DeltaTable(str(tmp_path)).alter.add_columns([Field("tax", PrimitiveType("string"))])
    with pytest.raises(ConfigError, match="tax: string in the table, bigint in the pipeline"):
        table.commit(wider(tmp_path, 1, 10, 20), WIDER, 1, {"run": "r1"})
    assert table.version() == 0


def test_a_commit_whose_answer_was_lost_added_its_columns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(sink(tmp_path), 0)
    committed = DeltaTable.create_write_transaction

    def losing(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        committed(self, *args, **kwargs)
        raise CommitFailedError("version exists")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", losing)
    table = evolving(tmp_path)
    assert table.commit(wider(tmp_path, 1, 10, 20), WIDER, 1, {"run": "r1"}) is True
    monkeypatch.undo()
    assert sorted(values(tmp_path)) == list(range(20))
    assert table.evolved(1) == [{"column": "tax", "type": "bigint"}]


def test_an_interval_adds_columns_before_it_replaces(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    table = evolving(tmp_path, ":interval:x")
    gone = Slice([OffsetRange("t", 0, 0, 5)])
    done = table.replace(gone, wider(tmp_path, 7, 0, 5), WIDER, 0, {"run": "i"}, name="p-i1-000000")
    assert done == {("t", 0): 5}
    assert values(tmp_path) == {n: n if n < 5 else None for n in range(10)}
    assert table.evolved(0) == [{"column": "tax", "type": "bigint"}]
    assert [n["version"] for n in table.notes(-1)] == [0], "adding columns is no batch"
    assert sink(tmp_path).examine() == [], "the pipeline's own commits are no one else's"


def test_rows_that_fit_are_not_compared_again(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    DeltaTable(str(tmp_path)).alter.add_columns([Field("later", PrimitiveType("string"))])
    assert evolving(tmp_path).commit(staged(tmp_path, 1, 10, 20), SCHEMA, 1, {"run": "r1"}), "others may add columns"
    with pytest.raises(ConfigError, match="later: only in the table"):
        evolving(tmp_path).check(StructType([*SCHEMA.fields, StructField("newer", StringType())]))
