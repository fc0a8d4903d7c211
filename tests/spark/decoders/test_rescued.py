"""Unknown fields of JSON records: the page, and odd names and values at random, on both paths."""

from __future__ import annotations

import random
from typing import Any

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


LONG_ARRAY = ",".join(['{"x":1,"o":{"p":[]}}'] * 20_000)
LONG_MAP = ",".join(f'"k{n}":{{"x":{n}}}' for n in range(4000))
WHOLE = [
    "{" + ",".join(f'"n{n}":{n}' for n in range(3000)) + "}", f'{{"z":"{FIVE_MB}"}}',
    f'{{"a":[{LONG_ARRAY},{{"y":2}}]}}', f'{{"a":[{LONG_ARRAY},{{"o":{{"q":"\\u0041"}}}}]}}',
    f'{{"m":{{{LONG_MAP},"z":{{"x":1,"y":[]}}}}}}',
]  # fmt: skip
"""Unknown fields that are kept as they are: to take a long array or map apart, Spark would need minutes."""
ARRAYS: list[tuple[str | None, str | None]] = [
    *((record, record) for record in WHOLE[:4]), (None, "null_value"), (f'{{"a":[{LONG_ARRAY}]}}', None),
    ('{"a":[{"x":1},{"y":2}]}', '{"a":[null,{"y":2}]}'),
]  # fmt: skip
IN_MAPS: list[tuple[str | None, str | None]] = [
    (WHOLE[4], WHOLE[4]), (f'{{"m":{{{LONG_MAP}}}}}', None), (f'{{"m":{{{LONG_MAP},"z":null}}}}', None),
    ('{"z": {"\\u006b": [{"l": {"x": 1}}, null, {"l": {"x": 1}, "]": { "w" : "}," }}], "m": [], "n": null}}',
     '{"z":{"\\u006b":[null,null,{"]":{"w":"},"}}]}}'),
    ('{"z": {"k": [{"l": {"x": 1}}]}}', None), ('{"z": null}', None), ('{"z": { }}', None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ddl", "cases"),
    [
        ("i INT, a ARRAY<STRUCT<x: INT, o: STRUCT<p: ARRAY<INT>>>>", ARRAYS),
        ("m MAP<STRING, STRUCT<x: INT>>, z MAP<STRING, ARRAY<MAP<STRING, STRUCT<x: INT>>>>", IN_MAPS),
    ],
    ids=["arrays", "maps"],
)
def test_rescued_fields_may_be_huge_long_or_deep(spark: SparkSession, ddl: str, cases: Any) -> None:
    found = kept(spark, ddl, [None if given is None else given.encode() for given, _ in cases])
    assert [(str(g)[:99], str(f)[:99]) for (g, wanted), f in zip(cases, found, strict=True) if f != wanted] == []


def test_rescued_fields_of_a_tombstone_are_none(spark: SparkSession) -> None:
    assert kept(spark, "i INT", [None], tombstone="row") == [None]


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
