"""The Arrow path keeps the unknown fields of a record as the Spark path does."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.decoding import differences

from sluice_spark.arrow.json import JsonChunks
from sluice_spark.arrow.rescued import WithRescued

pytestmark = pytest.mark.spark

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


def compared(
    spark: SparkSession, folder: Path, ddl: str, values: list[bytes | None], chance: random.Random
) -> tuple[int, list[Any]]:
    schema = T.StructType.fromDDL(ddl)
    chunks = WithRescued(JsonChunks(schema), schema)
    spec = {"json": {"schema": ddl, "rescue": True}}
    return differences(spark, folder, spec, chunks, values, lambda: chance.choice([1, 1, 2, 20]))


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), ddl=st.sampled_from([FLAT, DEEP, WITHIN]))
def test_what_arrow_keeps_is_what_spark_keeps(spark: SparkSession, tmp_path: Path, seed: int, ddl: str) -> None:
    chance = random.Random(seed)
    kept, wrong = compared(spark, tmp_path, ddl, [made(chance) for _ in range(500)], chance)
    assert wrong == []
    assert kept > 100


def test_each_name_with_each_value(spark: SparkSession, tmp_path: Path) -> None:
    values: list[bytes | None] = [
        f'{{"{name}":{value},"i":1}}'.encode("utf-8", "surrogatepass") for name in NAMES for value in VALUES
    ]
    values += [
        b'{"z":' + b"[" * 800 + b"]" * 800 + b"}", b'{"z":"' + b"x" * 30_000 + b'"}', None, b"", b"[1]",
        ("{" + ",".join(f'"n{n}":{n}' for n in range(900)) + "}").encode(),
    ]  # fmt: skip
    for ddl in (FLAT, DEEP, WITHIN):
        kept, wrong = compared(spark, tmp_path, ddl, values, random.Random(1))
        assert wrong == []
        assert kept > 300


def test_a_decoder_that_was_used_travels_to_a_worker(spark: SparkSession) -> None:
    schema = T.StructType.fromDDL("i INT")
    chunks = WithRescued(JsonChunks(schema), schema)
    values: list[bytes | None] = [b'{"i":1,"z":1.50}', b'{"i":"x"}', b'{"i":2}']
    for each in (chunks, pickle.loads(cloudpickle.dumps(chunks))):
        found = each.decode(values, [])
        assert found.kept.tolist() == [0, 2]
        assert found.columns.to_pylist() == [{"i": 1, "_rescued": '{"z":1.50}'}, {"i": 2, "_rescued": None}]
