"""Columns of a draft from the Avro and Protobuf schemas of a registry."""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import Any

import pytest
import yaml
from google.protobuf.descriptor_pb2 import DescriptorProto
from tests.fixtures.golden import Golden
from tests.fixtures.wire import STAMP, file, framed, message

from sluice.decoders.registry import Schema
from sluice.draft.draft import Draft, draft
from sluice.draft.protobuf import paths_of
from sluice.draft.sample import Sampled
from sluice.draft.wire_format import Columns, columns_of, schema_numbers
from sluice.pipeline import Pipeline


def drafted(schemas: dict[int, Schema | None], *values: bytes | None) -> Draft:
    known = {"topic": "t", "name": "t", "connection": "kafka_default", "registry": "theirs"}
    return draft(sampled(*values), **known, schemas=schemas)


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields]}


def of_avro(*schemas: Any, counts: tuple[int, ...] | None = None) -> Columns:
    known = {n: Schema("AVRO", json.dumps(schema)) for n, schema in enumerate(schemas, 1)}
    return columns_of(known, dict(enumerate(counts or (1,) * len(schemas), 1)))


@pytest.mark.parametrize(
    ("avro", "column"),
    [
        ("long", "BIGINT"),
        ({"type": "int", "logicalType": "date"}, "DATE"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "DECIMAL(9,2)"),
        ({"type": "fixed", "name": "F", "size": 16}, "BINARY"),
        ({"type": "map", "values": {"type": "array", "items": "string"}}, "MAP<STRING, ARRAY<STRING>>"),
        (record(("x", "int"), ("order", ["null", "string"]), name="In"), "STRUCT<x: INT, `order`: STRING>"),
    ],
)
def test_draft_has_a_column_for_each_avro_type(avro: Any, column: str) -> None:
    found = of_avro(record(("a", avro)))
    assert (found.columns, found.doubts) == ((("a", column),), [])
    assert found.full == (() if isinstance(avro, list) else ("a",))


def test_draft_leaves_out_avro_types_that_no_column_takes() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 50}
    for avro in ({"type": "map", "values": "null"}, ["int", "string"], decimal):
        found = of_avro(record(("id", "long"), ("a", avro)))
        assert (found.columns, [doubt[:3] for doubt in found.doubts]) == ((("id", "BIGINT"),), ["a: "]), avro
    for avro in ({"type": "array", "items": "null"}, ["null", "Order"]):  # the decoder does not read such schemas
        found = of_avro(record(("id", "long"), ("a", avro)))
        assert (found.columns, len(found.doubts)) == ((), 1), avro


def test_draft_from_avro_knows_named_types_unions_and_names_that_no_column_has() -> None:
    place = record(("city", "string"), name="Place")
    found = of_avro(record(("home", place), ("work", ["null", "Place"])))
    assert found.columns == (("home", "STRUCT<city: STRING>"), ("work", "STRUCT<city: STRING>"))
    referring = Schema("AVRO", json.dumps(record(("work", "shop.Place"))), (json.dumps(place | {"namespace": "shop"}),))
    assert columns_of({1: referring}, {1: 1}).columns == (("work", "STRUCT<city: STRING>"),)
    found = of_avro([record(("id", "long"), ("a", "int"), name="A"), record(("id", "int"), ("b", "int"), name="B")])
    assert (found.columns, found.full) == ((("id", "BIGINT"), ("a", "INT"), ("b", "INT")), ("id",))
    found = of_avro(record(("id", "int"), ("ID", "int"), ("_offset", "int")))
    assert (found.columns, len(found.doubts)) == ((("id", "INT"),), 2)


def test_draft_has_columns_that_take_the_records_of_all_schemas() -> None:
    first = record(("id", "int"), ("gone", "string"), ("at", record(("x", "float"), name="At")), ("odd", "int"))
    second = record(("new", "int"), ("id", "long"), ("at", record(("y", "int"), name="At")), ("odd", "string"))
    found = of_avro(first, second, counts=(5, 3))
    assert dict(found.columns) == {
        "new": "INT", "id": "BIGINT", "at": "STRUCT<x: FLOAT, y: INT>", "odd": "INT", "gone": "STRING",
    }  # fmt: skip
    assert [name for name, _ in found.columns][:2] == ["new", "id"], "in the order of the newest schema"
    assert found.full == ("id", "at", "odd")
    assert found.doubts == ["odd: is STRING in schema 2; as it is declared, 3 records of that schema would be refused"]


def test_draft_doubts_records_without_a_readable_schema(golden: Golden) -> None:
    schemas = {1: Schema("AVRO", json.dumps(record(("order_id", "long")))), 2: None}
    one = framed(1, b"")
    made = drafted(schemas, one, one, framed(2, b""), None)
    assert (made.columns, made.key) == ((("order_id", "BIGINT"),), "order_id")
    assert "registry: theirs" in made.pipeline
    golden("init", "\n".join(made.doubts))
    for other in (Schema("PROTOBUF", "syntax"), Schema("AVRO", '"string"'), Schema("AVRO", "{")):
        made = drafted({1: other}, one, one)
        assert "text: {}" in made.pipeline
        golden("init", "\n".join(made.doubts))


def test_draft_from_avro_is_a_valid_pipeline() -> None:
    placed = {"type": "long", "logicalType": "timestamp-millis"}
    made = drafted({7: Schema("AVRO", json.dumps(record(("id", "string"), ("placed_at", placed))))}, framed(7, b""))
    spec = Pipeline.model_validate(yaml.safe_load(made.pipeline))
    assert (spec.decode.config.names, made.event_time) == (["id", "placed_at"], "placed_at")
    expected = [(e["kwargs"]["column"], e["severity"]) for e in json.loads(made.suite)["expectations"]]
    assert sorted(expected) == [("id", "critical"), ("id", "warning"), ("placed_at", "warning")]


def sampled(*values: bytes | None) -> list[Any]:
    return [Sampled(0, n, 1_767_225_600_000, None, value) for n, value in enumerate(values)]


def test_draft_takes_the_schemas_and_messages_of_most_records() -> None:
    one, other = framed(1, b""), framed(1, b"", b"\x02\0")
    assert schema_numbers(sampled(one, one, b"{}", None)) == {1: 2}
    assert schema_numbers(sampled(one, b"{}", b"\0")) == schema_numbers([]) == {}
    records = sampled(one, other, b"\0\0\0\0\2", b"{}", None)
    assert schema_numbers(records) == {1: 2, 2: 1}
    assert {number: dict(found) for number, found in paths_of(records).items()} == {1: {(0,): 2}}


def map_entry(key: str, framed_: str) -> DescriptorProto:
    made = message("Entry", ("key", key), ("framed_", framed_))
    made.options.map_entry = True
    return made


def protobuf(*messages: DescriptorProto, package: str = "p") -> Schema:
    content = file(*messages, name="f", package=package).SerializeToString()
    return Schema("PROTOBUF", base64.b64encode(content).decode())


def of_protobuf(*schemas: Schema, path: tuple[int, ...] = (0,)) -> Columns:
    numbers = dict.fromkeys(range(1, len(schemas) + 1), 3)
    return columns_of(dict(enumerate(schemas, 1)), numbers, {n: Counter({path: 3}) for n in numbers})


@pytest.mark.parametrize(
    ("kind", "column", "always"),
    [
        ("int32", "INT", True), ("sint64", "BIGINT", True), ("uint32", "BIGINT", True),
        ("fixed64", "DECIMAL(20,0)", True), ("optional bool", "BOOLEAN", False), ("float", "FLOAT", True),
        ("bytes", "BINARY", True), ("repeated double", "ARRAY<DOUBLE>", True), (STAMP, "TIMESTAMP", False),
        (".google.protobuf.UInt64Value", "DECIMAL(20,0)", False), ("repeated .p.M.Entry", "MAP<STRING, INT>", True),
        (".p.In", "STRUCT<x: INT, `order`: ARRAY<STRING>>", False),
    ],
)  # fmt: skip
def test_draft_has_a_column_for_each_protobuf_type(kind: str, column: str, always: bool) -> None:
    inner = message("In", ("x", "int32"), ("order", "repeated string"))
    found = of_protobuf(protobuf(message("M", ("a", kind), nested=(map_entry("string", "int32"),)), inner))
    assert (found.columns, found.doubts) == ((("a", column),), [])
    assert found.full == (("a",) if always else ())
    assert (found.decoder, found.message) == ("protobuf", "p.M")


@pytest.mark.parametrize("kind", [".p.M", "repeated .p.M.Entry", ".google.protobuf.Any", ".p.Empty", ".p.Twice"])
def test_draft_leaves_out_messages_that_no_column_takes(kind: str) -> None:
    made = message("M", ("a", kind), ("b", "int32"), nested=(map_entry("int32", "string"),))
    found = of_protobuf(protobuf(made, message("Empty"), message("Twice", ("x", "int32"), ("X", "int32"))))
    assert found.columns == (("b", "INT"),)
    assert [doubt for doubt in found.doubts if "is left out" in doubt], found.doubts


def test_draft_merges_protobuf_schemas_with_nested_and_imported_messages() -> None:
    deep = protobuf(message("Out", nested=(message("M", ("a", "int32"), ("far", ".q.Far")),)))
    far = protobuf(message("Far", ("x", "int32")), package="q")
    first = Schema("PROTOBUF", deep.text, (far.text,), ("far.proto",))
    second = protobuf(message("Out", nested=(message("M", ("a", "int64"), ("new", "string")),)))
    found = of_protobuf(first, second, path=(0, 0))
    assert dict(found.columns) == {"a": "BIGINT", "new": "STRING", "far": "STRUCT<x: INT>"}
    assert (found.full, found.message) == (("a",), "p.Out.M")


def test_draft_names_the_message_of_most_records(golden: Golden) -> None:
    both = protobuf(message("Order", ("order_id", "int64"), ("at", STAMP)), message("Refund", ("refund", "int64")))
    values = [framed(1, b""), framed(1, b"", b"\x02\0"), framed(1, b"", b"\x02\x02"), None, b"\0"]
    made = drafted({1: both, 2: Schema("AVRO", '"int"')}, *values, framed(2, b""))
    spec: Any = Pipeline.model_validate(yaml.safe_load(made.pipeline))
    assert (spec.decode.protobuf.message, spec.decode.protobuf.registry) == ("p.Order", "theirs")
    assert made.columns == (("order_id", "BIGINT"), ("at", "TIMESTAMP"))
    assert (made.key, made.event_time) == ("order_id", "at")
    golden("init", "\n".join(made.doubts))
    made = drafted({1: Schema("PROTOBUF", 'syntax = "proto3";')}, framed(1, b""), framed(1, b""))
    assert "text: {}" in made.pipeline
    assert "schema 1" in made.doubts[0]
