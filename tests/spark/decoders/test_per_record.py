"""A decoder for each record: each is decoded by its own format alone, and what chooses none is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.decoding import Record, Refused, decoded, frame_of

from sluice.pipeline.sections import Decode
from sluice_spark.batch.quarantine import refused_records
from sluice_spark.decoders.base import decode, source_columns
from sluice_spark.decoders.per_record import choice_of
from sluice_spark.sources.base import RECORD_SCHEMA

pytestmark = pytest.mark.spark

JSON = {"json": {"schema": "id INT, s STRING, t TIMESTAMP"}}
CSV = {"csv": {"schema": "t TIMESTAMP, s VARCHAR(3), id INT NOT NULL", "separator": ";", "quote": "'"}}

Given = tuple[str, Sequence[tuple[str, bytes | None]] | None, bytes | None]


def found(spark: SparkSession, spec: dict[str, Any], given: Sequence[Given]) -> list[Any]:
    """Return the columns of each record that are not null, but for its time; or why it is refused."""
    records = [Record(value, topic, headers) for topic, headers, value in given]
    return [
        item if isinstance(item, Refused) else {k: v for k, v in item.items() if k != "t"}
        for item in decoded(spark, spec, records).found
    ]


def test_by_header_decodes_each_record_by_the_format_of_its_header_alone(spark: SparkSession) -> None:
    spec = {"by_header": {"name": "v", "formats": {"j": JSON, "text/c*": CSV}}}
    v = "v"
    given: list[tuple[Given, Any]] = [
        (("t", [(v, b"j")], b'{"id": 1, "s": "x"}'), {"id": 1, "s": "x"}),
        (("t", [(v, b"text/csv")], b"2020-01-01;y;2"), {"id": 2, "s": "y"}),
        (("t", [(v, b"text/c")], b"{id: 1}"), ("fields", None)),
        (("t", [(v, b"text/c")], b";toolong;1"), ("type", "s")),
        (("t", [(v, b"text/c")], b";;"), ("not_null", "id")),
        (("t", [(v, b"j")], b'{"s": "toolong"}'), {"s": "toolong"}),
        (("t", [(v, b"j")], b"1;y;2"), ("json", None)),
        (("t", [(v, b"j")], None), ("null_value", None)),
        (("t", [(v, b"text/c"), ("o", b"z"), (v, b"j")], b"{}"), {}),
        (("t", None, b"{}"), ("format", "v")),
        (("t", [], b"{}"), ("format", "v")),
        (("t", [("V", b"j"), ("", b"j")], b"{}"), ("format", "v")),
        (("t", [(v, b"j"), (v, None)], b"{}"), ("format", "v")),
        (("t", [(v, b"j"), (v, b"")], b"{}"), ("format", "v")),
        (("t", [(v, b"text/c\xff")], b";;1"), ("format", "v")),
        (("t", [(v, b"J")], b"{}"), ("format", "v")),
        (("t", [(v, b"x")], None), ("format", "v")),
        (("t", [(v, b"text/c\n")], b";;3"), {"id": 3}),
    ]
    assert found(spark, spec, [record for record, _ in given]) == [wanted for _, wanted in given]
    empty = decode(spark.createDataFrame([], RECORD_SCHEMA), Decode(**spec))
    assert source_columns(empty).dtypes[:3] == [("id", "int"), ("s", "string"), ("t", "timestamp")]


def test_by_header_default_takes_what_no_entry_names(spark: SparkSession) -> None:
    spec = {"by_header": {"name": "v", "formats": {"j": JSON}, "default": CSV}}
    given: list[Given] = [
        ("t", headers, b";y;2") for headers in (None, [("v", None)], [("v", b"\xff")], [("v", b"x")], [("v", b"j")])
    ]
    assert found(spark, spec, given) == [{"id": 2, "s": "y"}] * 4 + [("json", None)]


def test_by_topic_chooses_by_the_whole_name_of_a_queue_s_stream(spark: SparkSession) -> None:
    chosen = Decode(by_topic={"formats": {"orders:eu": JSON, "eu": CSV}}).chosen
    frame = frame_of(spark, [Record(b"{}", "orders:eu"), Record(b"{}", "eu")])
    for clusters, wanted in ((False, [0, 1]), (True, [1, 1])):
        chosen._clusters = clusters
        assert sorted(row[0] for row in frame.select(choice_of(chosen)).collect()) == wanted


def test_by_header_chooses_as_the_model_in_python(spark: SparkSession) -> None:
    keys = ["a", "*", "a*b", "x*y*z", "a.b", "(*", "a+b", "\\*", "é*", "*/*;q=#1 2"]
    values = ["a", "", "ab", "aXb", "aXbc", "xyz", "x y z\n", "a.b", "a+b", "(", "\\d", "é", "q/w;q=#1 2", "aab", None]
    frame = frame_of(spark, [Record(b"", headers=[("h", None if v is None else v.encode())]) for v in values])
    for some in (keys, [k for k in keys if k != "*"], keys[::-1]):
        spec = Decode(by_header={"name": "h", "formats": {k: {"text": {}} for k in some}})
        rows = frame.orderBy("offset").select(choice_of(spec.chosen)).collect()
        assert [row[0] for row in rows] == [spec.chosen.chosen(v) for v in values]


def test_by_topic_has_keys_headers_and_unknown_fields_of_each_format(spark: SparkSession) -> None:
    json = {"json": {"schema": "id INT", "rescue": True, "key": "k", "headers": {"h": "x"}}}
    csv = {"csv": {"schema": "k STRING, id INT", "headers": {"h": "y"}}}
    spec = {"by_topic": {"formats": {"c": csv, "j": json}}}
    headers = [("x", b"1"), ("y", b"2")]
    given: list[Given] = [
        ("j", headers, b'{"id": 1, "z": 2}'),
        ("c", headers, b"own,2"),
        ("c", [("x", b"\xff")], b"own,3"),
        ("j", [("x", b"\xff")], b"{}"),
    ]
    assert found(spark, spec, given) == [
        {"k": "k", "id": 1, "h": "1", "_rescued": '{"z":2}'},
        {"k": "own", "id": 2, "h": "2"},
        {"k": "own", "id": 3},
        ("utf8", "h"),
    ]


def test_quarantine_names_the_header_that_chose_no_format(spark: SparkSession) -> None:
    spec = Decode(by_header={"name": "v", "formats": {"j": JSON, "c": CSV}})
    headers = [b"j", b"c", b"z" * 300, b"\xff"]
    values = [b'{"id": "x"}', b'{"t": "x"};;1', b"{}", b"{}"]
    given = [Record(value, headers=[("v", header)]) for value, header in zip(values, headers, strict=True)]
    frame = decode(frame_of(spark, [*given, Record(b"{}")]), spec)
    rows = refused_records(frame, "r", spec).orderBy("_offset").collect()
    assert [(e["rule"], e["column"], e["detail"]) for row in rows for e in row["_errors"]] == [
        ("type", "id", "x"), ("time", "t", None), ("format", "v", "z" * 200), ("format", "v", None),
        ("format", "v", None),
    ]  # fmt: skip
    topics = Decode(by_topic={"formats": {"j": JSON}})
    (row,) = refused_records(decode(frame_of(spark, [Record(b"{}", "x")]), topics), "r", topics).collect()
    assert row["_errors"][0]["detail"] is None


def test_by_topic_has_tombstones_of_each_format(spark: SparkSession) -> None:
    key = {"key": "k", "tombstone": "delete"}
    formats = {"j": {"json": {"schema": "id INT NOT NULL", **key}}, "a": {"avro": {"schema": "id INT", **key}}}
    spec = {"by_topic": {"formats": formats}}
    given: list[Given] = [("j", None, None), ("a", None, None), ("x", None, None), ("a", None, b"?")]
    assert found(spark, spec, given) == [
        {"_deleted": True, "k": "k"}, {"_deleted": True, "k": "k"}, ("format", "_topic"),
        ("wire_format", None),
    ]  # fmt: skip
