"""Protobuf: each type of a field in each column, messages and files of any kind, and what a registry may answer."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.decoding import decoded
from tests.fixtures.registry import StandIn
from tests.fixtures.wire import IMPORTS, STAMP, TEXT, classes, file, framed, message

from sluice.decoders.protobuf import ProtobufDecode
from sluice.errors import ConfigError, SourceUnreachableError
from sluice_spark.decoders.conversions import EVER, Broken
from sluice_spark.decoders.protobuf import reader_of
from sluice_spark.decoders.protobuf_values import ProtobufReader

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def reader(ddl: str, **keys: Any) -> ProtobufReader:
    return reader_of(ProtobufDecode.model_validate({"schema": ddl, **keys}), T.StructType.fromDDL(ddl), EVER)


def refused(own: ProtobufReader, value: bytes | None) -> tuple[str, str | None]:
    """Return the rule and the column by which a record is refused."""
    with pytest.raises(Broken) as caught:
        own.read(value)
    return caught.value.rule, caught.value.column


INNER = message("In", ("x", "int32"), ("z", "optional string"))
# the column's type, the field's, what the field is set to (none: left out), and what the column has, or the rule
VALUES: list[tuple[str, str, Any, Any]] = [
    ("INT", "int32", 5, 5), ("INT", "int32", None, 0), ("INT", "optional int32", None, None),
    ("INT", "sint32", -5, -5), ("INT", "sfixed32", -(2**31), -(2**31)), ("INT", "uint32", 2**31, "type"),
    ("INT", "fixed64", 7, 7), ("TINYINT", "int32", 128, "type"), ("SMALLINT", "sint64", -32768, -32768),
    ("BIGINT", "uint32", 2**32 - 1, 2**32 - 1), ("BIGINT", "uint64", 2**63, "type"),
    ("BIGINT", "uint64", 2**63 - 1, 2**63 - 1), ("DECIMAL(20,0)", "uint64", 2**64 - 1, Decimal(2**64 - 1)),
    ("DECIMAL(4,2)", "int64", 99, Decimal("99.00")), ("DECIMAL(4,2)", "int64", 100, "digits"),
    ("DOUBLE", "int64", 2**53, 2.0**53), ("DOUBLE", "int64", 2**53 + 1, "digits"), ("FLOAT", "int32", 3, 3.0),
    ("DOUBLE", "double", math.inf, math.inf), ("DOUBLE", "float", 0.5, 0.5), ("FLOAT", "float", 0.5, 0.5),
    ("FLOAT", "double", 0.5, "type"), ("INT", "string", "5", "type"), ("STRING", "int32", 5, "type"),
    ("STRING", "string", "é😀\0", "é😀\0"), ("STRING", "string", None, ""), ("STRING", "bytes", b"x", "type"),
    ("BINARY", "bytes", b"\xff\0", b"\xff\0"), ("BOOLEAN", "bool", True, True),
    ("STRING", ".p.Colour", 1, "BLUE"), ("STRING", ".p.Colour", None, "RED"), ("STRING", ".p.Colour", 9, "type"),
    ("INT", ".p.Colour", 9, 9),
    ("ARRAY<BIGINT>", "repeated int32", [1, 2], [1, 2]), ("ARRAY<BIGINT>", "repeated int32", None, []),
    ("BIGINT", "repeated int32", None, "type"), ("ARRAY<INT>", "int32", 1, "type"),
    ("MAP<STRING, INT>", "map int32", {"k": 1, "": 0}, {"k": 1, "": 0}), ("MAP<STRING, INT>", "map int32", None, {}),
    ("MAP<STRING, INT>", "map int64", {"k": 2**31}, "type"), ("STRING", "map int32", None, "type"),
    ("STRUCT<x: INT, z: STRING>", ".p.In", {"x": 1}, {"x": 1, "z": None}),
    ("STRUCT<x: INT, z: STRING>", ".p.In", None, None),
    ("STRUCT<x: INT NOT NULL, y: INT>", ".p.In", {}, {"x": 0, "y": None}),
    ("STRUCT<z: STRING NOT NULL>", ".p.In", {}, "not_null"), ("STRUCT<x: STRING>", ".p.In", None, "type"),
    ("ARRAY<STRUCT<x: INT>>", "repeated .p.In", [{"x": 1}, {}], [{"x": 1}, {"x": 0}]), ("INT", ".p.In", None, "type"),
    ("MAP<STRING, STRUCT<x: INT>>", "map .p.In", {"a": {"x": 3}}, {"a": {"x": 3}}),
    ("TIMESTAMP", STAMP, {"seconds": 1, "nanos": 5000}, datetime(1970, 1, 1, 0, 0, 1, 5)),
    ("TIMESTAMP", STAMP, {"seconds": -1, "nanos": 999999000}, datetime(1969, 12, 31, 23, 59, 59, 999999)),
    ("TIMESTAMP", STAMP, None, None), ("TIMESTAMP", STAMP, {"nanos": 1}, "digits"),
    ("TIMESTAMP", STAMP, {"nanos": -1000}, "time"), ("TIMESTAMP", STAMP, {"seconds": 2**60}, "time"),
    ("TIMESTAMP_NTZ", STAMP, {"seconds": 1}, "type"), ("TIMESTAMP", "int64", 1, "type"),
    ("STRUCT<seconds: BIGINT, nanos: INT>", STAMP, {"seconds": 1, "nanos": 1}, {"seconds": 1, "nanos": 1}),
    ("STRING", TEXT, {"value": "x"}, "x"), ("STRING", TEXT, {}, ""), ("STRING", TEXT, None, None),
    ("STRUCT<value: STRING>", TEXT, {"value": "x"}, {"value": "x"}), ("INT", TEXT, {"value": "1"}, "type"),
]  # fmt: skip
RULES = ("type", "digits", "time", "not_null")


def test_protobuf_gives_each_type_of_a_field_its_columns(spark: SparkSession, registry: StandIn) -> None:
    values, wanted, ddl = [], [], "l BIGINT NOT NULL"
    for n, (column, kind, value, result) in enumerate(VALUES):
        made = file(message("M", ("l", "int64"), (f"c{n}", kind), ("unknown", "string")), INNER, imports=IMPORTS)
        registry.register_protobuf(n, made.SerializeToString())
        given = {"l": n, "unknown": "x"} | ({} if value is None else {f"c{n}": value})
        values.append(framed(n, classes(made)["p.M"](**given).SerializeToString()))
        ddl += f", c{n} {column}"
        same = {"l": n} | ({} if result is None else {f"c{n}": result})
        wanted.append(result if isinstance(result, str) and result in RULES else same)
    assert decoded(spark, {"protobuf": {"schema": ddl}}, values).brief == wanted
    assert all("format=serialized" in path for path in registry.asked)


def test_protobuf_reads_the_message_at_the_path_of_the_record(registry: StandIn) -> None:
    one = message("One", ("a", "int32"), nested=(message("Deep", ("a", "int32")), message("Deeper", ("a", "int32"))))
    made = file(one, message("Two", ("b", "string")))
    registry.register_protobuf(1, made.SerializeToString())
    value = classes(made)["p.One"](a=5).SerializeToString()
    own, only = reader("a INT"), reader("a INT", message="p.One.Deeper")
    for path in (b"\0", b"\x02\0", b"\x04\0\0", b"\x04\0\x02"):  # the first; [0]; [0, 0]; [0, 1]
        assert own.read(framed(1, value, path)) == (5,)
    assert own.read(framed(1, classes(made)["p.Two"](b="x").SerializeToString(), b"\x02\x02")) == (None,)
    assert only.read(framed(1, value, b"\x04\0\x02")) == (5,)
    assert refused(only, framed(1, value, b"\0")) == ("message", None)
    for path in (b"\x02\x04", b"\x02\x01", b"\x01", b"\x04\0", b"\xff" * 6, b"", b"\xfe\x01" * 200):
        assert refused(own, framed(1, value if path else b"", path)) == ("protobuf", None), path


def test_protobuf_checks_text_of_proto2(registry: StandIn) -> None:
    made = file(message("M", ("s", "string"), ("m", "map string")))
    made.syntax = "proto2"
    registry.register_protobuf(1, made.SerializeToString())
    own = reader("s STRING, m MAP<STRING, STRING>")
    assert own.read(framed(1, b"\x0a\x01x")) == ("x", [])
    assert own.read(framed(1, b"")) == (None, []), "left out, and its file tells that from an empty text"
    for wrong in (b"\x0a\x01\xff", b"\x12\x03\x0a\x01\xff", b"\x12\x03\x12\x01\xff"):
        assert refused(own, framed(1, wrong))[0] == "utf8"


def test_protobuf_refuses_a_number_that_a_closed_enum_does_not_name(registry: StandIn) -> None:
    """Its parser puts it aside, as if it had not been there."""
    made = file(message("M", ("one", ".p.Colour"), ("all", "repeated .p.Colour"), ("by", "map .p.Colour")))
    made.syntax = "proto2"
    registry.register_protobuf(1, made.SerializeToString())
    good = b"\x08\x01\x10\x00\x10\x01\x1a\x05\x0a\x01k\x10\x01"
    for ddl, expected in (
        ("one STRING, all ARRAY<STRING>, by MAP<STRING, STRING>", ("BLUE", ["RED", "BLUE"], [("k", "BLUE")])),
        ("one INT, all ARRAY<INT>, by MAP<STRING, INT>", (1, [0, 1], [("k", 1)])),
    ):
        own = reader(ddl)
        assert own.read(framed(1, good)) == expected
        assert own.read(framed(1, good + b"\x20\x09")) == expected, "a field that the schema does not have"
        for column, wrong in (("one", b"\x08\x09"), ("all", b"\x10\x09"), ("by", b"\x1a\x05\x0a\x01l\x10\x09")):
            assert refused(own, framed(1, good + wrong)) == ("type", column)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_protobuf_field_may_have_any_name(registry: StandIn, syntax: str) -> None:
    """Also one that Python's messages have for something else."""
    names = ("Clear", "HasField", "class", "DESCRIPTOR", "ListFields", "ByteSize")
    made = file(message("M", *((name, "int32") for name in names)))
    made.syntax = syntax
    registry.register_protobuf(1, made.SerializeToString())
    value = b"".join(bytes([number << 3, number]) for number in range(1, 7))
    assert reader(", ".join(f"`{name}` INT" for name in names)).read(framed(1, value)) == (1, 2, 3, 4, 5, 6)


def test_protobuf_imports_come_from_the_registry(registry: StandIn) -> None:
    deep = file(message("Far", ("x", "int32")), name="far.proto", package="q")
    near = file(message("Near", ("far", ".q.Far")), name="near.proto", package="r", imports=("far.proto",))
    top = file(message("M", ("near", ".r.Near"), ("at", STAMP)), imports=("near.proto", IMPORTS[0]))
    to = {name: [{"name": f"{name}.proto", "subject": name, "version": 1}] for name in ("far", "near")}
    registry.register_protobuf(1, top.SerializeToString(), references=to["near"])
    registry.register_protobuf(2, near.SerializeToString(), references=to["far"])
    registry.register_protobuf(3, deep.SerializeToString())
    registry.versions = {("near", 1): 2, ("far", 1): 3}
    made = classes(deep, near, top)["p.M"]
    value = made(near={"far": {"x": 7}}, at={"seconds": 1}).SerializeToString()
    found = reader("near STRUCT<far: STRUCT<x: INT>>, at TIMESTAMP").read(framed(1, value))
    assert found == ({"far": {"x": 7}}, 1_000_000)
    del registry.versions["far", 1]
    with pytest.raises(SourceUnreachableError, match="404"):
        reader("near STRUCT<far: STRUCT<x: INT>>").read(framed(1, value))


def test_protobuf_common_types_need_not_be_registered(registry: StandIn) -> None:
    """They import each other, and come with the extra."""
    made = file(message("M", ("day", ".google.type.Date"), ("at", STAMP)), imports=("google/type/date.proto", *IMPORTS))
    registry.register_protobuf(1, made.SerializeToString())
    found = reader("day STRUCT<year: INT, month: INT>, at TIMESTAMP").read(
        framed(1, b"\x0a\x05\x08\xea\x0f\x10\x0b\x12\x02\x08\x01")
    )
    assert found == ({"year": 2026, "month": 11}, 1_000_000)


def test_protobuf_refuses_records_of_what_is_no_schema(registry: StandIn) -> None:
    registry.register(1, {"type": "record", "name": "R", "fields": []})
    registry.register_protobuf(2, file(message("M", ("a", ".x.Gone"))).SerializeToString())
    registry.register_protobuf(3, file(message("M"), imports=("os/path.proto",)).SerializeToString())
    registry.register_protobuf(5, b"no descriptor")
    for number, rule in ((1, "protobuf_schema"), (2, "protobuf_schema"), (3, "protobuf_schema"), (4, "schema_id")):
        assert refused(reader("a INT"), framed(number, b"")) == (rule, None), number
    with pytest.raises(ConfigError, match="text of a schema"):
        reader("a INT").read(framed(5, b""))
