"""Headers on the Arrow path are those of the Spark path."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.pipeline.sections import Decode
from sluice_spark.arrow.plain import TextChunks, with_headers
from sluice_spark.decoders.base import COLUMN, DATA, RULE, decode

pytestmark = pytest.mark.spark

RECORDS = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, partition INT, "
    "offset LONG, timestamp TIMESTAMP"
)
NAMES = ["a", "A", "b", "", "é", "a.b", "`"]
VALUES = [b"x", b"", None, "é😀".encode(), b"\xff", b"\xed\xa0\x80", b"\x00", b"null", b"x" * 5_000]


def test_headers_are_the_same_on_both_paths(spark: SparkSession) -> None:
    chance = random.Random(20)
    given: list[Any] = [None, []]
    for _ in range(200):
        given.append([(chance.choice(NAMES), chance.choice(VALUES)) for _ in range(chance.randrange(5))])
    values = [b"\xff" if n % 7 == 3 else b"v" for n in range(len(given))]
    columns = {"one": "a", "two": "b", "none": "", "dotted": "a.b", "tick": "`", "again": "a"}
    rows = [(None, value, own, "t", 0, n, None) for n, (value, own) in enumerate(zip(values, given, strict=True))]
    frame = decode(spark.createDataFrame(rows, RECORDS), Decode(text={"headers": columns}))
    theirs = {r["offset"]: r for r in frame.select("offset", RULE, COLUMN, DATA).collect()}
    found = with_headers(TextChunks().decode(list(values), []), given, columns)
    assert found.kept is not None
    assert found.columns.schema == pa.schema([("value", pa.string()), *((name, pa.string()) for name in columns)])
    assert found.kept.tolist() == [n for n in range(len(rows)) if theirs[n][RULE] is None]
    assert found.columns.to_pylist() == [theirs[n][DATA].asDict() for n in found.kept.tolist()]
    assert {r[COLUMN] for r in theirs.values() if r[RULE] is not None} == {None, "one", "two", "none", "dotted", "tick"}
    assert frame.where((F.col(RULE) != "utf8") | (F.col(RULE).isNull() & F.col(COLUMN).isNotNull())).count() == 0
