"""Columns that only rows or table have: which can be added, and which readers read them then."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.spark.sinks.delta.conftest import NOTE, by_spark, rows

from sluice_spark.sinks.delta.evolution import Difference, difference, merged, told, ways_out
from sluice_spark.sinks.delta.table import DeltaSink

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]  # a JVM reads the types

schema = StructType.fromDDL


def found(there: str, ours: str) -> Difference:
    return difference(schema(there), schema(ours))


@pytest.mark.parametrize(
    ("there", "ours", "added"),
    [
        ("a INT", "a INT", []),
        ("a INT NOT NULL, b STRING", "b STRING, a INT", []),
        ("a INT", "a INT, b DOUBLE", ["b double"]),
        ("a INT", "`a b` DECIMAL(12,2), a INT", ["`a b` decimal(12,2)"]),
        ("s STRUCT<x: INT>", "s STRUCT<x: INT, y: STRING>", ["s.y string"]),
        ("s ARRAY<STRUCT<x: INT>>", "s ARRAY<STRUCT<y: DATE, x: INT>>", ["s.element.y date"]),
        ("m MAP<STRING, STRUCT<x: INT>>", "m MAP<STRING, STRUCT<x: INT, y: INT>>", ["m.value.y int"]),
        ("a INT", "a INT, s STRUCT<x: INT NOT NULL>", ["s struct<x:int>"]),
    ],
)
def test_delta_columns_that_only_the_pipeline_has_can_be_added(there: str, ours: str, added: list[str]) -> None:
    differences = found(there, ours)
    assert [column.sql for column in differences.added] == added
    assert (differences.fits("add"), ways_out(differences, "/t", "add")) == (True, []), "the commit does it"


@pytest.mark.parametrize(
    ("there", "ours", "said", "way"),
    [
        ("old STRING", "new STRING", "old: only in the table", "new AS old"),
        ("old STRING", "s STRUCT<x: INT>, new STRING", "old: only in the table", "new AS old"),
        ("old STRING", "s STRUCT<x: INT>", "old: only in the table", "new_name AS old"),
        ("a INT, old STRING", "a INT", "old: only in the table", "CAST(NULL AS string) AS old"),
        ("a INT", "a BIGINT", "a: int in the table, bigint in the pipeline", "CAST(a AS int)"),
        ("a BIGINT", "a INT", "a: bigint in the table, int in the pipeline", "CAST(a AS bigint)"),
        (
            "s STRUCT<x: INT>",
            "s STRUCT<x: BIGINT>",
            "s.x: int in the table",
            "build s again in the transform, with CAST(",
        ),
        ("s STRUCT<l: ARRAY<STRING>>", "s STRUCT<l: ARRAY<INT>>", "s.l.element: string in", "build s again in the"),
        ("s STRUCT<x: INT, y: INT>", "s STRUCT<x: INT>", "s.y: only in the table", "rebuild its struct"),
        ("m MAP<STRUCT<x: INT>, INT>", "m MAP<STRUCT<x: INT, y: INT>, INT>", "m: map<", "under a new name"),
        ("a STRING", "a STRUCT<x: INT>", "a: string in the table", "CAST(a AS string)"),
        ("id INT", "ID INT, id INT", "ID: the table has this name in other letters", "name ID in the transform"),
        ("a INT", "a INT, b VOID", "b: only in the pipeline", "cast b"),
        ("a INT", "a INT, t TIMESTAMP_NTZ", "t: only in the pipeline", "cast t"),
        ("a INT", "a INT, t ARRAY<STRUCT<x: VARIANT>>", "t: only in the pipeline", "cast t"),
    ],
)
def test_delta_names_a_change_that_might_be_a_rename_or_lose_values(there: str, ours: str, said: str, way: str) -> None:
    differences = found(there, ours)
    assert not differences.fits("add")
    assert said in "; ".join(told(differences))
    assert way in "; ".join(ways_out(differences, "/t", "add"))


def test_delta_keeps_the_metadata_of_columns() -> None:
    first, m = "a INT NOT NULL COMMENT 'one'", "m MAP<STRING, INT>"
    there = schema(f"{first}, s STRUCT<x: INT NOT NULL>, l ARRAY<STRUCT<p: INT>>, {m}")
    ours = schema(f"z INT NOT NULL, l ARRAY<STRUCT<q: INT NOT NULL, p: INT>>, s STRUCT<y: INT, x: INT>, a INT, {m}")
    both = merged(there, ours)
    wanted = f"{first}, s STRUCT<x: INT NOT NULL, y: INT>, l ARRAY<STRUCT<p: INT, q: INT>>, {m}, z INT"
    assert both == schema(wanted)
    assert both["a"].metadata == {"comment": "one"}
    assert difference(both, ours) == Difference()


def put(sink: DeltaSink, frame: object, version: int) -> bool:
    sink.check(frame.schema)  # type: ignore[attr-defined]
    return sink.commit(sink.stage(frame, f"e1-{version:06d}"), frame.schema, version, NOTE)  # type: ignore[arg-type,attr-defined]


OLD = "named_struct('x', id, 'in', array(named_struct('p', id)))"
NEW = "named_struct('y', 'n', 'in', array(named_struct('q', 'm', 'p', id)), 'x', id)"
MAP = "map('k', named_struct({}))"


@pytest.mark.long
@pytest.mark.parametrize("partition_by", [[], ["day"]], ids=["whole", "partitioned"])
def test_delta_old_and_new_rows_are_read_by_both(spark: SparkSession, tmp_path: Path, partition_by: list[str]) -> None:
    sink = DeltaSink(str(tmp_path / "t"), "app", partition_by, evolve="add")
    day = "DATE'2026-01-01' + CAST(id % 2 AS INT)"
    put(sink, rows(spark, 0, 2, day=day, s=OLD, m=MAP.format("'a', id")), 0)
    frame = rows(spark, 2, 4, tax="CAST(id AS DECIMAL(12,2))", day=day, s=NEW, m=MAP.format("'b', 'v', 'a', id"))
    put(sink, frame, 1)
    put(sink, frame.where("false"), 2)
    assert [c["column"] for c in sink.evolved(1)] == ["tax", "s.y", "s.in.element.q", "m.value.b"]
    wanted = [
        {"id": n, "tax": n if n > 1 else None, "s": {"x": n, "in": [{"p": n, "q": "m" if n > 1 else None}],
         "y": "n" if n > 1 else None}, "m": [("k", {"a": n, "b": "v" if n > 1 else None})]}
        for n in range(4)
    ]  # fmt: skip
    of_rs = DeltaTable(sink.path).to_pyarrow_table()
    for table in (by_spark(spark, sink).toArrow(), sink.rows(spark).toArrow(), of_rs):
        found = table.sort_by("id").select(["id", "tax", "s", "m"]).to_pylist()
        assert found == wanted
    judged, number = sink.rows_of(spark, ["r"])
    assert (judged.where("tax IS NULL").count(), number) == (2, 4)


def test_delta_keeps_a_column_that_must_not_be_null_and_a_comment(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT NOT NULL COMMENT 'the key', _topic STRING, _partition INT, "
        "_offset BIGINT, _timestamp TIMESTAMP, _run STRING) USING delta"
    )
    sink = DeltaSink(path, "app", evolve="add")
    put(sink, rows(spark, 0, 2, tax="id * 2"), 0)
    schema = spark.read.format("delta").load(path).schema
    assert (schema["id"].metadata, schema["tax"].nullable) == ({"comment": "the key"}, True)
    assert '"name":"id","type":"long","nullable":false' in DeltaTable(path).schema().to_json()
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (9, 't', 0, 9, now(), 'r', 18)")
