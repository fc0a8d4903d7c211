"""The documented contract of unknown fields, record by record."""

from __future__ import annotations

import pytest
from pyspark.sql import Row, SparkSession
from tests.spark.decoders.conftest import FIVE_MB, PAGE, records

from sluice.pipeline.sections import Decode
from sluice_spark.decoders.base import DATA, RULE, decode

pytestmark = pytest.mark.spark

DDL = "i INT, o STRUCT<x: INT>, a ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"


def kept(spark: SparkSession, ddl: str, values: list[bytes | None], **keys: str) -> list[str | None]:
    frame = decode(records(spark, values), Decode(json={"schema": ddl, "rescue": True, **keys})).orderBy("offset")
    rows: list[Row] = frame.select(RULE, DATA).collect()
    return [row[0] or row[1]["_rescued"] for row in rows]


def test_the_documented_records(spark: SparkSession) -> None:
    section = PAGE.split("## JSON: unknown fields\n")[1].split("\n## ")[0]
    lines = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    assert DDL in section
    rows = [[cell.strip().strip("`") for cell in line] for line in lines]
    assert len(rows) == 10
    found = kept(spark, DDL, [row[0].encode() for row in rows])
    assert [given or "null" for given in found] == [row[1] for row in rows]


def test_what_is_huge_is_kept_as_well(spark: SparkSession) -> None:
    many = "{" + ",".join(f'"n{n}":{n}' for n in range(3000)) + "}"
    long = f'{{"z":"{FIVE_MB}"}}'
    assert kept(spark, "i INT", [many.encode(), long.encode(), None]) == [many, long, "null_value"]
    assert kept(spark, "i INT", [None], tombstone="row") == [None]


def test_a_long_array_with_unknown_fields_is_kept_as_it_is(spark: SparkSession) -> None:
    """To take it apart, Spark would need minutes."""
    few, many = '{"x":1}', ",".join(['{"x":1,"o":{"p":[]}}'] * 20_000)
    arrays = [f'[{few},{{"y":2}}]', f"[{many}]", f'[{many},{{"y":2}}]', f'[{many},{{"o":{{"q":"\\u0041"}}}}]']
    records: list[bytes | None] = [f'{{"a":{array}, "z": 1}}'.encode() for array in arrays]
    found = kept(spark, "a ARRAY<STRUCT<x: INT, o: STRUCT<p: ARRAY<INT>>>>", records)
    assert found == ['{"z":1,"a":[null,{"y":2}]}', '{"z":1}', *(f'{{"z":1,"a":{array}}}' for array in arrays[2:])]


def test_a_long_map_with_unknown_fields_is_kept_as_it_is(spark: SparkSession) -> None:
    long = ",".join(f'"k{n}":{{"x":{n}}}' for n in range(4000))
    maps = [f"{{{long}}}", f'{{{long},"z":{{"x":1,"y":[]}}}}', f'{{{long},"z":null}}']
    found = kept(spark, "m MAP<STRING, STRUCT<x: INT>>", [f'{{"m":{m}}}'.encode() for m in maps])
    assert found == [None, f'{{"m":{maps[1]}}}', None]


def test_the_values_of_maps_are_looked_into_at_any_depth(spark: SparkSession) -> None:
    ddl = "z MAP<STRING, ARRAY<MAP<STRING, STRUCT<x: INT>>>>"
    found = kept(
        spark,
        ddl,
        [
            b'{"z": {"\\u006b": [{"l": {"x": 1}}, null, {"l": {"x": 1}, "]": { "w" : "}," }}], "m": [], "n": null}}',
            b'{"z": {"k": [{"l": {"x": 1}}]}}',
            b'{"z": null}',
            b'{"z": { }}',
        ],
    )
    assert found == ['{"z":{"\\u006b":[null,null,{"]":{"w":"},"}}]}}', None, None, None]
