"""What a table that others made wants of those who write it: told by name before anything is read, or kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType
from tests.unit.spark.sinks.delta.conftest import SCHEMA, put, rows, sink, staged

from sluice.errors import ConfigError
from sluice.ranges import OffsetRange
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.delta.handle import UNWRITABLE
from sluice_spark.sinks.delta.shape import _strict
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sinks.parquet.staged import read_back


def change(path: Path, *actions: dict[str, Any]) -> None:
    """Commit what delta-rs has no function for."""
    version = DeltaTable(str(path)).version() + 1
    lines = [*actions, {"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL", "operationParameters": {}}}]
    (path / f"_delta_log/{version:020}.json").write_text("\n".join(map(json.dumps, lines)))


def protocol(feature: str) -> dict[str, Any]:
    both = {"readerFeatures": [feature]} if feature in ("typeWidening", "vacuumProtocolCheck") else {}
    return {
        "protocol": {"minReaderVersion": 3 if both else 1, "minWriterVersion": 7, "writerFeatures": [feature], **both}
    }


def column(path: Path, name: str, **said: Any) -> None:
    """Change what the table says of a column."""
    texts = [file.read_text() for file in sorted((path / "_delta_log").glob("*.json"))]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    metadata = [line["metaData"] for line in lines if "metaData" in line][-1]
    columns = json.loads(metadata["schemaString"])
    next(field for field in columns["fields"] if field["name"] == name).update(said)
    change(path, {"metaData": {**metadata, "schemaString": json.dumps(columns)}})


def without_id(path: Path, batch: int, first: int, last: int) -> Staged:
    folder = f"batches/p-e1-{batch:06d}-0123456{batch}"
    (path / folder).mkdir(parents=True)
    made = rows(first, last)
    pq.write_table(made.set_column(0, "id", pa.nulls(made.num_rows, pa.int64())), path / folder / "part.parquet")
    return read_back(str(path), folder, offsets=True)


@pytest.mark.parametrize("feature", sorted(UNWRITABLE))
def test_a_feature_that_delta_rs_cannot_write_is_named_at_once(tmp_path: Path, feature: str) -> None:
    put(sink(tmp_path), 0)
    change(tmp_path, protocol(feature))
    with pytest.raises(ConfigError, match=f"features that delta-rs cannot write: {feature}") as caught:
        sink(tmp_path).check(SCHEMA)
    assert "DROP FEATURE" in caught.value.next_step
    with pytest.raises(CommitFailedError):  # once it can, the list is too long
        DeltaTable(str(tmp_path)).alter.set_table_properties({"some": "thing"}, raise_if_not_exists=False)


def test_a_feature_that_nobody_knows_is_no_crowd(tmp_path: Path) -> None:
    """Others did not commit meanwhile, a hundred times."""
    DeltaTable.create(str(tmp_path / "theirs"), DeltaSchema.from_arrow(rows(0, 1).schema))
    change(tmp_path / "theirs", protocol("ofTheFuture"))
    with pytest.raises(ConfigError, match=r"cannot write: .*ofTheFuture"):
        sink(tmp_path / "theirs").examine()  # it belongs to nobody yet
    put(sink(tmp_path), 0)
    files = staged(tmp_path, 1, 10, 20)
    change(tmp_path, protocol("ofTheFuture"))
    table = sink(tmp_path)
    table.check(SCHEMA)
    with pytest.raises(ConfigError, match=r"cannot write: .*ofTheFuture"):
        table.commit(files, SCHEMA, 1, {"run": "r1"})
    gone = Slice([OffsetRange("t", 0, 2, 5)])
    with pytest.raises(ConfigError, match=r"cannot write: .*ofTheFuture"):
        table.replace(gone, files, SCHEMA, 1, {"run": "r1"}, name="p-e1-000001")


def test_a_column_that_allows_no_nulls_gets_none(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    column(tmp_path, "id", nullable=False)
    table = sink(tmp_path)
    table.check(SCHEMA)
    before = table.table_version()
    with pytest.raises(ConfigError, match="10 rows have no value in id, which allows no nulls") as caught:
        table.commit(without_id(tmp_path, 1, 10, 20), SCHEMA, 1, {"run": "r1"})
    assert "{name: has_id, not_null: {columns: [id]}}" in caught.value.next_step
    gone = Slice([OffsetRange("t", 0, 2, 5)])
    with pytest.raises(ConfigError, match="3 rows have no value in id"):
        table.replace(gone, without_id(tmp_path, 2, 2, 5), SCHEMA, 2, {"run": "r2"}, name="p-e1-000002")
    assert table.table_version() == before
    assert put(table, 3)


def test_a_column_without_a_profile_gets_no_nulls_either(tmp_path: Path) -> None:
    """Only the first columns of a wide table are profiled."""
    put(sink(tmp_path), 0)
    column(tmp_path, "id", nullable=False)
    table = sink(tmp_path)
    for made, refused in ((without_id(tmp_path, 1, 10, 20), True), (staged(tmp_path, 2, 20, 30), False)):
        files = tuple(replace(file, columns={}) for file in made.files)
        if refused:
            with pytest.raises(ConfigError, match="10 rows have no value in id"):
                table.commit(replace(made, files=files), SCHEMA, 1, {"run": "r1"})
        else:
            table.commit(replace(made, files=files), SCHEMA, 2, {"run": "r2"})


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (StructType().add("a", ArrayType(IntegerType()), nullable=False), ["a"]),
        (StructType().add("a", ArrayType(IntegerType(), containsNull=False)), ["a, in its elements"]),
        (StructType().add("o", StructType().add("x", IntegerType(), nullable=False)), ["o.x"]),
        (StructType().add("m", MapType(StringType(), IntegerType(), valueContainsNull=False)), ["m, in its values"]),
        (StructType().add("n", IntegerType(), nullable=False).add("a", ArrayType(IntegerType())), []),
    ],
)
def test_nested_columns_that_allow_no_nulls_are_told(kind: StructType, where: list[str]) -> None:
    assert list(_strict(kind)) == where


def test_a_nested_column_that_allows_no_nulls_is_refused(tmp_path: Path) -> None:
    put(sink(tmp_path), 0)
    column(tmp_path, "id", nullable=False, type={"type": "array", "elementType": "long", "containsNull": True})
    with pytest.raises(ConfigError, match="id, allows no nulls: in nested columns nobody would see to that") as caught:
        sink(tmp_path).check(SCHEMA)
    assert "DROP NOT NULL" in caught.value.next_step


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("delta.generationExpression", "_offset + 1", r"id is generated \(_offset \+ 1\)"),
        ("delta.invariants", '{"expression": {"expression": "id < 5"}}', r"id has an invariant \(.*id < 5"),
    ],
)
def test_what_staged_files_are_not_compared_with_is_refused(tmp_path: Path, key: str, value: str, said: str) -> None:
    put(sink(tmp_path), 0)
    column(tmp_path, "id", metadata={key: value})
    with pytest.raises(ConfigError, match=said):
        sink(tmp_path).check(SCHEMA)
