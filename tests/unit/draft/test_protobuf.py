"""The columns that messages of Protobuf become."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any

import pytest
import yaml
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from sluice.decoders.registry import Schema
from sluice.draft.draft import Draft, draft
from sluice.draft.protobuf import paths_of
from sluice.draft.registered import Columns, columns_of, schema_numbers
from sluice.draft.sample import Sampled
from sluice.pipeline import Pipeline

Field = FieldDescriptorProto
STAMP = ".google.protobuf.Timestamp"


def message(name: str, *fields: tuple[str, str], nested: tuple[DescriptorProto, ...] = ()) -> DescriptorProto:
    """A message; a type is a word of Protobuf, or ``.full.Name``, with ``repeated`` or ``optional`` before it."""
    made = DescriptorProto(name=name)
    made.nested_type.extend(nested)
    for number, (own, kind) in enumerate(fields, start=1):
        *how, of = kind.split()
        field = made.field.add(name=own, number=number, label=Field.LABEL_OPTIONAL, type=Field.TYPE_MESSAGE)
        if of.startswith("."):
            field.type_name = of
        else:
            field.type = Field.Type.Value(f"TYPE_{of.upper()}")
        if how == ["repeated"]:
            field.label = Field.LABEL_REPEATED
        if how == ["optional"]:
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{own}")
    return made


def entry(key: str, value: str) -> DescriptorProto:
    made = message("Entry", ("key", key), ("value", value))
    made.options.map_entry = True
    return made


def schema(*messages: DescriptorProto, package: str = "p") -> Schema:
    file = FileDescriptorProto(name="f", package=package, syntax="proto3")
    file.message_type.extend(messages)
    return Schema("PROTOBUF", base64.b64encode(file.SerializeToString()).decode())


def of(*schemas: Schema, path: tuple[int, ...] = (0,)) -> Columns:
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
def test_each_type_has_the_column_that_takes_it(kind: str, column: str, always: bool) -> None:
    inner = message("In", ("x", "int32"), ("order", "repeated string"))
    found = of(schema(message("M", ("a", kind), nested=(entry("string", "int32"),)), inner))
    assert (found.columns, found.doubts) == ((("a", column),), [])
    assert found.full == (("a",) if always else ())
    assert (found.decoder, found.message) == ("protobuf", "p.M")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (".p.M", "contains itself"), ("repeated .p.M.Entry", "is a map without text keys"),
        (".google.protobuf.Any", "is a google.protobuf.Any, which no column takes"),
        (".p.Empty", "is a message without fields"), (".p.Twice", "differs from 'x' in case only"),
    ],
)  # fmt: skip
def test_what_no_column_takes_is_left_out_by_name(kind: str, why: str) -> None:
    made = message("M", ("a", kind), ("b", "int32"), nested=(entry("int32", "string"),))
    found = of(schema(made, message("Empty"), message("Twice", ("x", "int32"), ("X", "int32"))))
    assert found.columns == (("b", "INT"),)
    assert [doubt for doubt in found.doubts if why in doubt and "is left out" in doubt], found.doubts


def test_schemas_are_merged_and_what_is_nested_or_imported_is_found() -> None:
    deep = schema(message("Out", nested=(message("M", ("a", "int32"), ("far", ".q.Far")),)))
    far = schema(message("Far", ("x", "int32")), package="q")
    first = Schema("PROTOBUF", deep.text, (far.text,), ("far.proto",))
    second = schema(message("Out", nested=(message("M", ("a", "int64"), ("new", "string")),)))
    found = of(first, second, path=(0, 0))
    assert dict(found.columns) == {"a": "BIGINT", "new": "STRING", "far": "STRUCT<x: INT>"}
    assert (found.full, found.message) == (("a",), "p.Out.M")


def value(number: int, path: bytes = b"\0") -> bytes:
    return b"\0" + number.to_bytes(4) + path


def drafted(schemas: dict[int, Schema | None], *values: bytes | None) -> Draft:
    records: list[Any] = [Sampled(0, n, 0, None, each) for n, each in enumerate(values)]
    return draft(records, topic="t", name="t", connection="kafka_default", registry="theirs", schemas=schemas)


def test_a_draft_names_the_message_that_most_records_are() -> None:
    both = schema(message("Order", ("order_id", "int64"), ("at", STAMP)), message("Refund", ("refund", "int64")))
    values = [value(1), value(1, b"\x02\0"), value(1, b"\x02\x02"), None, b"\0"]
    made = drafted({1: both, 2: Schema("AVRO", '"int"')}, *values, value(2))
    spec = Pipeline.model_validate(yaml.safe_load(made.pipeline))
    assert spec.decode.protobuf is not None
    assert (spec.decode.protobuf.message, spec.decode.protobuf.registry) == ("p.Order", "theirs")
    assert made.columns == (("order_id", "BIGINT"), ("at", "TIMESTAMP"))
    assert (made.key, made.event_time) == ("order_id", "at")
    told = " ".join(made.doubts)
    assert "1 records are not p.Order but p.Refund: they would be refused" in told
    assert (
        "1 records were written with schema 2, which is of the kind AVRO: only Protobuf would be decoded here" in told
    )


def test_a_sample_says_which_messages_it_has() -> None:
    records: list[Any] = [
        Sampled(0, 0, 0, None, v) for v in (value(1), value(1, b"\x02\0"), b"\0\0\0\0\2", b"{}", None)
    ]
    assert {number: dict(found) for number, found in paths_of(records).items()} == {1: {(0,): 2}}
    assert schema_numbers(records) == {1: 2, 2: 1}


def test_what_is_no_descriptor_is_told() -> None:
    made = drafted({1: Schema("PROTOBUF", 'syntax = "proto3";')}, value(1), value(1))
    assert "text: {}" in made.pipeline
    assert "2 records were written with schema 1, which is no Protobuf record that can be read" in made.doubts[0]
