"""Unknown fields of JSON records: the page, and odd names and values at random, on both paths."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.decoding import Refused, decoded
from tests.spark.decoders.conftest import FIVE_MB, PAGE, table

pytestmark = pytest.mark.spark

DDL = "i INT, o STRUCT<x: INT>, a ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"


def kept(spark: SparkSession, ddl: str, values: list[bytes | None], **keys: str) -> list[str | None]:
    """Return the unknown fields of records, or the rules that they break."""
    found = decoded(spark, {"json": {"schema": ddl, "rescue": True, **keys}}, values).found
    return [item.rule if isinstance(item, Refused) else item.get("_rescued") for item in found]


def test_rescued_fields_are_those_of_the_page(spark: SparkSession) -> None:
    rows = table("JSON: unknown fields")
    assert DDL in PAGE
    found = kept(spark, DDL, [row[0].encode() for row in rows])
    assert [given or "null" for given in found] == [row[1] for row in rows]


def test_rescued_fields_may_be_huge(spark: SparkSession) -> None:
    many = "{" + ",".join(f'"n{n}":{n}' for n in range(3000)) + "}"
    long = f'{{"z":"{FIVE_MB}"}}'
    assert kept(spark, "i INT", [many.encode(), long.encode(), None]) == [many, long, "null_value"]
    assert kept(spark, "i INT", [None], tombstone="row") == [None]


def test_rescued_fields_of_a_long_array_are_the_whole_array(spark: SparkSession) -> None:
    """To take it apart, Spark would need minutes."""
    few, many = '{"x":1}', ",".join(['{"x":1,"o":{"p":[]}}'] * 20_000)
    arrays = [f'[{few},{{"y":2}}]', f"[{many}]", f'[{many},{{"y":2}}]', f'[{many},{{"o":{{"q":"\\u0041"}}}}]']
    records: list[bytes | None] = [f'{{"a":{array}, "z": 1}}'.encode() for array in arrays]
    found = kept(spark, "a ARRAY<STRUCT<x: INT, o: STRUCT<p: ARRAY<INT>>>>", records)
    assert found == ['{"z":1,"a":[null,{"y":2}]}', '{"z":1}', *(f'{{"z":1,"a":{array}}}' for array in arrays[2:])]


def test_rescued_fields_of_a_long_map_are_the_whole_map(spark: SparkSession) -> None:
    long = ",".join(f'"k{n}":{{"x":{n}}}' for n in range(4000))
    maps = [f"{{{long}}}", f'{{{long},"z":{{"x":1,"y":[]}}}}', f'{{{long},"z":null}}']
    found = kept(spark, "m MAP<STRING, STRUCT<x: INT>>", [f'{{"m":{m}}}'.encode() for m in maps])
    assert found == [None, f'{{"m":{maps[1]}}}', None]


def test_rescued_fields_are_found_in_values_of_maps_at_any_depth(spark: SparkSession) -> None:
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


FLAT = 'i INT, s STRING, `a"b` INT'
DEEP = "i INT, o STRUCT<x: INT, p: STRUCT<y: INT, `é\\n`: STRING>>, m MAP<STRING, BIGINT>, a ARRAY<STRUCT<x: INT>>"
WITHIN = (
    "i INT, a ARRAY<STRUCT<x: INT, p: STRUCT<y: INT>>>, aa ARRAY<ARRAY<STRUCT<x: INT>>>, "
    "o STRUCT<p: ARRAY<STRUCT<x: INT>>>"
)
NAMES = ["aa", "i", "s", 'a\\"b', "o", "m", "a", "I", "z", "", "zz", "\\u0069", "\\u007a", "é", "\\u00e9", "a.b", " z",
         "x", "p", "y", "\\n", "é\\\\n", "\\ud83d\\ude00", "😀", "\\ud83d", "{", "}", ",", ":", "\\\\",
         "k" * 300]  # fmt: skip
VALUES = ["1", "null", "1.50", "1e400", "-0.0", "12345678901234567890123456789012345678901234567890", "true", '""',
          '"x"', '"{"', '"\\""', '"}\\\\"', '",\\"z\\":1"', '"\\ud83d"', '"é😀"', "[]", "[ 1 ,[ ]]", "{}", '{"x":1}',
          '{ "y" : [ {"z":"}"} ] }', '{"x":1,"x":2}', '{"x":1,"y":2,"y":3}', '{"p":{"y":1,"q":2.50},"x":null}',
          '{"p":null,"":[]}', '{"p":{"\\u0079":1,"\\u007a":2}}', "[" * 60 + "]" * 60, '[{"x":1,"w":2}]',
          '"' + "long " * 500 + '"', "tru", "01",
          '[null, {"x":1, "v" : 1.50} ,{}, { } ]', '[[],[ {"\\u0079":"]"} , null],null, [{"x":2}]]',
          '{"p":[{"x":1},{"q":"{"}]}', '[{"p":{"y":1,"z":2}},{"p":null}]',
          '[{"w":' + "[" * 600 + "]" * 600 + "}]"]  # fmt: skip
BLANKS = ["", "", "", " ", "\t", "  "]


def made(chance: random.Random) -> bytes:
    """Return an object of a few members; names and values are odd, doubled, deep, or all of it."""
    fields = []
    for _ in range(chance.randrange(6)):
        blanks = [chance.choice(BLANKS) for _ in range(4)]
        known = chance.random() < 0.3
        name, value = ("i", "1") if known else (chance.choice(NAMES), chance.choice(VALUES))
        fields.append(f'{blanks[0]}"{name}"{blanks[1]}:{blanks[2]}{value}{blanks[3]}')
    return ("{" + ",".join(fields) + "}").encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("ddl", [FLAT, DEEP, WITHIN], ids=["flat", "deep", "in arrays"])
def test_rescued_fields_are_the_same_on_both_paths(spark: SparkSession, ddl: str) -> None:
    chance = random.Random(3)
    values: list[bytes | None] = [
        f'{{"{name}":{value},"i":1}}'.encode("utf-8", "surrogatepass") for name in NAMES for value in VALUES
    ]
    values += [
        b'{"z":' + b"[" * 800 + b"]" * 800 + b"}", b'{"z":"' + b"x" * 30_000 + b'"}', None, b"", b"[1]",
        ("{" + ",".join(f'"n{n}":{n}' for n in range(900)) + "}").encode(),
    ]  # fmt: skip
    found = decoded(spark, {"json": {"schema": ddl, "rescue": True}}, [*values, *(made(chance) for _ in range(700))])
    assert len(found.kept) > 400
