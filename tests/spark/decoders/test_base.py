"""What all decoders share: the columns that a transform sees, and the rules' names."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.decoders.conftest import NOON, records

from sluice.pipeline.sections import Decode
from sluice_spark.decoders.base import COLUMN, RULE, decode, source_columns

pytestmark = pytest.mark.spark


def test_what_a_transform_sees(spark: SparkSession) -> None:
    frame = source_columns(decode(records(spark, [b'{"i": 1}']), Decode(json={"schema": "i INT, j STRING"})))
    assert frame.dtypes == [
        ("i", "int"), ("j", "string"), ("_topic", "string"), ("_partition", "int"), ("_offset", "bigint"),
        ("_timestamp", "timestamp"),
    ]  # fmt: skip
    assert [tuple(r) for r in frame.collect()] == [(1, None, "t", 3, 0, NOON)]


def test_a_refused_record_names_the_column_where_there_is_one(spark: SparkSession) -> None:
    values: list[bytes | None] = [
        b'{"i": 1, "n": "x"}',
        b'{"i": 1, "t": "5:00"}',
        b"?",
        b"\xff",
        None,
        b'{"i": 1}',
        b'{"n": 2}',
    ]
    spec = Decode(json={"schema": "i INT NOT NULL, n INT, t TIMESTAMP"})
    rows = decode(records(spark, values), spec).orderBy("offset").select(RULE, COLUMN).collect()
    assert [tuple(r) for r in rows] == [
        ("type", "n"), ("time", "t"), ("json", None), ("utf8", None), ("null_value", None), (None, None),
        ("not_null", "i"),
    ]  # fmt: skip
