"""What all decoders share: the columns that a transform sees, and the rules' names."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.spark.decoders.conftest import NOON, RECORDS, records

from sluice.pipeline.sections import Decode
from sluice_spark.arrow.json import JsonChunks
from sluice_spark.arrow.plain import WithKeys
from sluice_spark.decoders.base import COLUMN, DATA, RULE, decode, source_columns

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


def test_a_tombstone_is_refused_or_a_row_that_has_its_key_as_the_file_says(spark: SparkSession) -> None:
    rows = [
        (k, v, "t", 3, n, NOON) for n, (k, v) in enumerate([(b"a", None), (None, None), (b"b", b""), (b"\xff", None)])
    ]
    frame = spark.createDataFrame(rows, RECORDS)
    every = "i INT, s STRING, d DECIMAL(5,2), t TIMESTAMP, m MAP<STRING, INT>, o STRUCT<x: INT NOT NULL>, v VARIANT"

    def found(schema: str, **keys: str) -> list[tuple[str, ...]]:
        decoded = decode(frame, Decode(json={"schema": schema, "key": "id", **keys})).orderBy("offset")
        return [(r[0] or {k: v for k, v in r[2].asDict().items() if v is not None}, r[1])
                for r in decoded.select(RULE, COLUMN, DATA).collect()]  # fmt: skip

    assert found(every) == [("null_value", None), ("null_value", None), ("json", None), ("null_value", None)]
    assert found(every, tombstone="row") == [({"id": "a"}, None), ({}, None), ("json", None), ("utf8", "id")]
    needed = found("s STRING, i INT NOT NULL", tombstone="row")
    assert needed == [("not_null", "i"), ("not_null", "i"), ("json", None), ("not_null", "i")]
    gone = found("s STRING, i INT NOT NULL", tombstone="delete")
    assert gone == [({"id": "a", "_deleted": True}, None), ("null_key", None), ("json", None), ("utf8", "id")]


KEYS: list[bytes | None] = [b"a/1.json", None, "é".encode(), b"\xff", b"", b"k"]
VALUES: list[bytes | None] = [b'{"i": 1}', b'{"i": 2}', b'{"i": 3}', b'{"i": 4}', b'{"i": 5}', b"?"]


def test_the_key_can_be_a_column(spark: SparkSession) -> None:
    rows = [(k, v, "t", 3, n, NOON) for n, (k, v) in enumerate(zip(KEYS, VALUES, strict=True))]
    frame = decode(spark.createDataFrame(rows, RECORDS), Decode(json={"schema": "i INT", "key": "file"}))
    assert source_columns(frame).dtypes[:3] == [("i", "int"), ("file", "string"), ("_topic", "string")]
    found = frame.orderBy("offset").select(RULE, COLUMN, f"{DATA}.i", f"{DATA}.file").collect()
    assert [tuple(r) for r in found if r[0] is None] == [
        (None, None, 1, "a/1.json"), (None, None, 2, None), (None, None, 3, "é"), (None, None, 5, ""),
    ]  # fmt: skip
    assert [tuple(r)[:2] for r in found if r[0] is not None] == [("utf8", "file"), ("json", None)]


@pytest.mark.parametrize("sizes", [1, 2, 6])
def test_the_arrow_path_gives_the_same_keys(spark: SparkSession, sizes: int) -> None:
    chunks = pickle.loads(pickle.dumps(WithKeys(JsonChunks(StructType.fromDDL("i INT")), "file")))
    assert chunks.columns.names == ["i", "file"]
    found = []
    for at in range(0, len(VALUES), sizes):
        done = chunks.decode(VALUES[at : at + sizes], KEYS[at : at + sizes])
        kept = range(len(VALUES[at : at + sizes])) if done.kept is None else done.kept
        found += [(at + int(n), *row.values()) for n, row in zip(kept, done.columns.to_pylist(), strict=True)]
    assert found == [(0, 1, "a/1.json"), (1, 2, None), (2, 3, "é"), (4, 5, "")]
