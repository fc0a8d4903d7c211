"""Delta tables of others whose features and columns the sink refuses by name, or has to respect."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)
from tests.fixtures.parquet import stage
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, replace, rows, set_properties, sink

from sluice.errors import ConfigError
from sluice_spark.sinks.base import RowsRefusedError, Staged
from sluice_spark.sinks.delta.handle import UNWRITABLE
from sluice_spark.sinks.delta.table import DeltaSink


def change(path: Path, *actions: dict[str, Any]) -> None:
    """Commit actions for which delta-rs has no function."""
    version = DeltaTable(str(path)).version() + 1
    lines = [*actions, {"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL", "operationParameters": {}}}]
    (path / f"_delta_log/{version:020}.json").write_text("\n".join(map(json.dumps, lines)))


def protocol(feature: str) -> dict[str, Any]:
    both = {"readerFeatures": [feature]} if feature in ("typeWidening", "vacuumProtocolCheck") else {}
    versions = {"minReaderVersion": 3 if both else 1, "minWriterVersion": 7}
    return {"protocol": {**versions, "writerFeatures": [feature], **both}}


def column(path: Path, name: str, **keys: Any) -> None:
    """Change the description of a column in the table's log."""
    texts = [file.read_text() for file in sorted((path / "_delta_log").glob("*.json"))]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    metadata = [line["metaData"] for line in lines if "metaData" in line][-1]
    columns = json.loads(metadata["schemaString"])
    next(field for field in columns["fields"] if field["name"] == name).update(keys)
    change(path, {"metaData": {**metadata, "schemaString": json.dumps(columns)}})


@pytest.mark.parametrize("feature", sorted(UNWRITABLE))
def test_delta_table_with_a_feature_that_delta_rs_cannot_write_is_refused(tmp_path: Path, feature: str) -> None:
    put(sink(tmp_path), 0)
    change(tmp_path, protocol(feature))
    with pytest.raises(ConfigError, match=f"features that delta-rs cannot write: {feature}") as caught:
        sink(tmp_path).check(SCHEMA)
    assert "DROP FEATURE" in caught.value.next_step
    with pytest.raises(CommitFailedError):  # once it can, the list is too long
        set_properties(tmp_path, some="thing")


def test_delta_commit_that_an_unknown_feature_refuses_is_not_tried_again(tmp_path: Path) -> None:
    """Others did not commit meanwhile, a hundred times."""
    DeltaTable.create(str(tmp_path / "theirs"), DeltaSchema.from_arrow(rows(0, 1).schema))
    change(tmp_path / "theirs", protocol("ofTheFuture"))
    put(sink(tmp_path), 0)
    files = stage(tmp_path, 1, rows(10, 20))
    change(tmp_path, protocol("ofTheFuture"))
    table = sink(tmp_path)
    table.check(SCHEMA)
    attempts: list[Callable[[], object]] = [
        sink(tmp_path / "theirs").examine,  # which would name its owner
        lambda: table.commit(files, SCHEMA, 1, {"run": "r1"}),
        lambda: replace(table, 2, 5, files),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match=r"cannot write: .*ofTheFuture"):
            attempt()


@pytest.mark.parametrize("profiled", [True, False], ids=["profiled", "among-many-columns"])
def test_delta_refuses_nulls_in_a_column_that_allows_none(tmp_path: Path, profiled: bool) -> None:
    def staged(batch: int, count: int, **columns: Any) -> Staged:
        made = stage(tmp_path, batch, rows(10, 10 + count, **columns))
        bare = tuple(dataclasses.replace(file, columns={}) for file in made.files)
        return made if profiled else dataclasses.replace(made, files=bare)

    put(sink(tmp_path), 0)
    column(tmp_path, "id", nullable=False)
    table = sink(tmp_path)
    table.check(SCHEMA)
    before = table.table_version()
    some = pa.array([None if n % 4 == 1 else n for n in range(10)], pa.int64())
    with pytest.raises(RowsRefusedError, match="3 rows have no value in id, which allows no nulls") as caught:
        table.commit(staged(1, 10, id=some), SCHEMA, 1, {"run": "r1"})
    assert [offset for _, _, offset in caught.value.rows] == [11, 15, 19]
    assert "{name: has_id, not_null: {columns: [id]}}" in caught.value.next_step
    with pytest.raises(RowsRefusedError, match="3 rows have no value in id"):
        replace(table, 2, 5, staged(2, 3, id=pa.nulls(3, pa.int64())))
    assert table.table_version() == before
    assert table.commit(staged(3, 10), SCHEMA, 3, {"run": "r3"})


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a=b", "(a)", "{a}", "a\tb", "a\nb", ""])
def test_delta_refuses_new_columns_with_names_that_spark_does_not_write(tmp_path: Path, name: str) -> None:
    wrong = StructType([*SCHEMA.fields, StructField(name, LongType())])
    with pytest.raises(ConfigError, match="no name of a column"):
        sink(tmp_path).check(wrong)
    put(sink(tmp_path), 0)
    with pytest.raises(ConfigError, match="no name of a column"):
        DeltaSink(str(tmp_path), "app", evolve="add").check(wrong)


def test_delta_makes_no_table_without_the_feature_that_it_needs(tmp_path: Path) -> None:
    """delta-rs looks for it everywhere but in maps, and then reads its own table no more."""
    within = StructType([*SCHEMA.fields, StructField("m", MapType(StringType(), ArrayType(TimestampNTZType())))])
    with pytest.raises(ConfigError, match="TIMESTAMP_NTZ within MAPs"):
        sink(tmp_path).check(within)
    assert not list(tmp_path.iterdir())
    sink(tmp_path).check(StructType([*within.fields, StructField("t", TimestampNTZType())]))
    sink(tmp_path).check(StructType([*SCHEMA.fields, StructField("s", ArrayType(TimestampNTZType()))]))


NESTED = "allows no nulls: in nested columns"
INVARIANT = {"delta.invariants": '{"expression": {"expression": "id < 5"}}'}


@pytest.mark.parametrize(
    ("kind", "keys", "named"),
    [
        (ArrayType(LongType()), {"nullable": False}, f"pipeline: id, {NESTED}"),
        (ArrayType(LongType(), containsNull=False), {}, f"pipeline: id, in its elements, {NESTED}"),
        (StructType().add("x", LongType(), nullable=False), {}, rf"pipeline: id\.x, {NESTED}"),
        (MapType(StringType(), LongType(), valueContainsNull=False), {}, f"pipeline: id, in its values, {NESTED}"),
        (LongType(), {"metadata": {"delta.generationExpression": "_offset + 1"}}, r"id is generated \(_offset \+ 1\)"),
        (LongType(), {"metadata": INVARIANT}, r"id has an invariant \(.*id < 5"),
    ],
)
def test_delta_refuses_a_column_whose_conditions_staged_files_are_not_compared_with(
    tmp_path: Path, kind: DataType, keys: dict[str, Any], named: str
) -> None:
    put(sink(tmp_path), 0)
    column(tmp_path, "id", type=kind.jsonValue(), **keys)
    with pytest.raises(ConfigError, match=named) as caught:
        sink(tmp_path).check(SCHEMA)
    assert ("DROP NOT NULL" in caught.value.next_step) == (NESTED in named)


def test_delta_is_partitioned_by_no_binary_column(tmp_path: Path) -> None:
    schema = StructType([*SCHEMA.fields, StructField("b", BinaryType())])
    with pytest.raises(ConfigError, match="BINARY") as caught:
        DeltaSink(str(tmp_path / "t"), "a", ["b"]).check(schema)
    assert "hex(b)" in caught.value.next_step
