"""The documented contract of decoding Protobuf, against Protobuf's own writer, on both paths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.decoding import differences
from tests.fixtures.registry import StandIn, stand_in
from tests.spark.decoders.conftest import outcomes, plain, records

from sluice.decoders.protobuf import ProtobufDecode
from sluice.decoders.registry import Registry
from sluice.errors import ConfigError, SourceUnreachableError
from sluice.pipeline.sections import Decode
from sluice_spark.arrow.registered import RegisteredChunks
from sluice_spark.decoders.base import decode
from sluice_spark.decoders.converting import EVER, SINCE_1901, Broken
from sluice_spark.decoders.protobuf import reader_of
from sluice_spark.decoders.protobuf_values import ProtobufReader

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

Field = descriptor_pb2.FieldDescriptorProto
STAMP, TEXT = ".google.protobuf.Timestamp", ".google.protobuf.StringValue"
KINDS = {name.removeprefix("TYPE_").lower(): number for name, number in Field.Type.items()}


def message(name: str, *fields: tuple[str, str], nested: tuple[Any, ...] = ()) -> descriptor_pb2.DescriptorProto:
    """Return a message of fields by name and type: ``optional int32``, ``repeated .p.X``, ``map int32``."""
    made = descriptor_pb2.DescriptorProto(name=name)
    made.nested_type.extend(nested)
    for number, (own, kind) in enumerate(fields, start=1):
        *how, of = kind.split()
        field = made.field.add(name=own, number=number, label=Field.LABEL_OPTIONAL)
        if how == ["map"]:
            entry = message(f"{own.title()}Entry", ("key", "string"), ("value", of))
            entry.options.map_entry = True
            made.nested_type.append(entry)
            how, of = ["repeated"], f".p.{name}.{own.title()}Entry"
        if how == ["repeated"]:
            field.label = Field.LABEL_REPEATED
        if how == ["optional"]:
            field.proto3_optional, field.oneof_index = True, len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{own}")
        if of.startswith("."):
            field.type, field.type_name = Field.TYPE_ENUM if of == ".p.Colour" else Field.TYPE_MESSAGE, of
        else:
            field.type = KINDS[of]
    return made


def file(*messages: Any, imports: tuple[str, ...] = (), name: str = "default", package: str = "p") -> Any:
    made = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    made.dependency.extend(imports)
    made.message_type.extend(messages)
    colour = made.enum_type.add(name="Colour") if package == "p" else None
    for number, text in enumerate(("RED", "BLUE") if colour is not None else ()):
        colour.value.add(name=text, number=number)
    return made


def classes(*files: Any) -> dict[str, Any]:
    """Return the classes of all messages of some files, by full name."""
    pool = DescriptorPool()
    for known in (TIMESTAMP, WRAPPERS):
        pool.AddSerializedFile(known.serialized_pb)
    for one in files:
        pool.Add(one)
    names = [f"{one.package}.{m.name}" for one in files for m in one.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


def framed(number: int, value: bytes, path: bytes = b"\0") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + path + value


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with stand_in() as found:
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", found.connection())
        yield found


def decoded(spark: SparkSession, values: list[bytes | None], ddl: str, **keys: Any) -> list[Any]:
    spec = Decode.model_validate({"protobuf": {"schema": ddl, **keys}})
    return outcomes(decode(records(spark, values), spec))


def reader(ddl: str, **keys: Any) -> ProtobufReader:
    return reader_of(ProtobufDecode.model_validate({"schema": ddl, **keys}), T.StructType.fromDDL(ddl), EVER)


INNER = message("In", ("x", "int32"), ("z", "optional string"))
IMPORTS = ("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto")
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
    ("BINARY", "bytes", b"\xff\0", bytearray(b"\xff\0")), ("BOOLEAN", "bool", True, True),
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


def test_each_type_of_a_field_has_its_columns(spark: SparkSession, registry: StandIn) -> None:
    values, wanted, ddl = [], [], "l BIGINT NOT NULL"
    for n, (column, kind, value, result) in enumerate(VALUES):
        made = file(message("M", ("l", "int64"), (f"c{n}", kind), ("unknown", "string")), INNER, imports=IMPORTS)
        registry.register_protobuf(n, made.SerializeToString())
        given = {"l": n, "unknown": "x"} | ({} if value is None else {f"c{n}": value})
        values.append(framed(n, classes(made)["p.M"](**given).SerializeToString()))
        ddl += f", c{n} {column}"
        same = {"l": n} | ({} if result is None else {f"c{n}": result})
        wanted.append(result if isinstance(result, str) and result in RULES else same)
    assert decoded(spark, values, ddl) == wanted
    assert all("format=serialized" in path for path in registry.asked)


def test_which_message_a_record_is(registry: StandIn) -> None:
    one = message("One", ("a", "int32"), nested=(message("Deep", ("a", "int32")), message("Deeper", ("a", "int32"))))
    made = file(one, message("Two", ("b", "string")))
    registry.register_protobuf(1, made.SerializeToString())
    value = classes(made)["p.One"](a=5).SerializeToString()
    read = reader("a INT").read
    found = {
        path: read(framed(1, value, path))
        for path in (b"\0", b"\x02\0", b"\x04\0\0", b"\x04\0\x02")  # the first; [0]; [0, 0]; [0, 1]
    }
    assert set(found.values()) == {(5,)}
    assert read(framed(1, classes(made)["p.Two"](b="x").SerializeToString(), b"\x02\x02")) == (None,)
    only = reader("a INT", message="p.One.Deeper").read
    assert only(framed(1, value, b"\x04\0\x02")) == (5,)
    for path, wrong, rule in (
        (b"\0", only, "message"), (b"\x02\x04", read, "protobuf"), (b"\x02\x01", read, "protobuf"),
        (b"\x01", read, "protobuf"), (b"\x04\0", read, "protobuf"), (b"\xff" * 6, read, "protobuf"),
        (b"", read, "protobuf"), (b"\xfe\x01" * 200, read, "protobuf"),
    ):  # fmt: skip
        with pytest.raises(Broken) as caught:
            wrong(framed(1, value if path else b"", path))
        assert caught.value.rule == rule, path


@pytest.mark.parametrize(
    ("value", "rule"),
    [(b"\x08", "protobuf"), (b"\x0a\x05ab", "protobuf"), (b"\x12\x01\xff", "protobuf"), (b"\0", "protobuf")],
    ids=["no value", "cut off", "no UTF-8", "no tag"],
)
def test_bytes_that_are_no_message_are_refused(registry: StandIn, value: bytes, rule: str) -> None:
    registry.register_protobuf(1, file(message("M", ("a", "int32"), ("s", "string"))).SerializeToString())
    with pytest.raises(Broken) as caught:
        reader("a INT, s STRING").read(framed(1, value))
    assert caught.value.rule == rule


def test_text_of_an_old_file_is_looked_at_too(registry: StandIn) -> None:
    made = file(message("M", ("s", "string"), ("m", "map string")))
    made.syntax = "proto2"
    registry.register_protobuf(1, made.SerializeToString())
    read = reader("s STRING, m MAP<STRING, STRING>").read
    assert read(framed(1, b"\x0a\x01x")) == ("x", [])
    assert read(framed(1, b"")) == (None, []), "left out, and its file tells that from an empty text"
    for wrong in (b"\x0a\x01\xff", b"\x12\x03\x0a\x01\xff", b"\x12\x03\x12\x01\xff"):
        with pytest.raises(Broken) as caught:
            read(framed(1, wrong))
        assert caught.value.rule == "utf8"


def test_a_number_that_an_enum_of_an_old_file_does_not_name_is_refused(registry: StandIn) -> None:
    """Its parser puts it aside, as if it had not been there."""
    made = file(message("M", ("one", ".p.Colour"), ("all", "repeated .p.Colour"), ("by", "map .p.Colour")))
    made.syntax = "proto2"
    registry.register_protobuf(1, made.SerializeToString())
    good = b"\x08\x01\x10\x00\x10\x01\x1a\x05\x0a\x01k\x10\x01"
    for ddl, expected in (
        ("one STRING, all ARRAY<STRING>, by MAP<STRING, STRING>", ("BLUE", ["RED", "BLUE"], [("k", "BLUE")])),
        ("one INT, all ARRAY<INT>, by MAP<STRING, INT>", (1, [0, 1], [("k", 1)])),
    ):
        read = reader(ddl).read
        assert read(framed(1, good)) == expected
        assert read(framed(1, good + b"\x20\x09")) == expected, "a field that the schema does not have"
        for column, wrong in (("one", b"\x08\x09"), ("all", b"\x10\x09"), ("by", b"\x1a\x05\x0a\x01l\x10\x09")):
            with pytest.raises(Broken) as caught:
                read(framed(1, good + wrong))
            assert (caught.value.rule, caught.value.column) == ("type", column)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_a_field_may_have_any_name(registry: StandIn, syntax: str) -> None:
    """Also one that Python's messages have for something else."""
    names = ("Clear", "HasField", "class", "DESCRIPTOR", "ListFields", "ByteSize")
    made = file(message("M", *((name, "int32") for name in names)))
    made.syntax = syntax
    registry.register_protobuf(1, made.SerializeToString())
    value = b"".join(bytes([number << 3, number]) for number in range(1, 7))
    assert reader(", ".join(f"`{name}` INT" for name in names)).read(framed(1, value)) == (1, 2, 3, 4, 5, 6)


def test_what_a_file_imports_comes_from_the_registry(registry: StandIn) -> None:
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


def test_googles_common_types_need_not_be_registered(registry: StandIn) -> None:
    """They import each other, and come with the extra."""
    made = file(message("M", ("day", ".google.type.Date"), ("at", STAMP)), imports=("google/type/date.proto", *IMPORTS))
    registry.register_protobuf(1, made.SerializeToString())
    found = reader("day STRUCT<year: INT, month: INT>, at TIMESTAMP").read(
        framed(1, b"\x0a\x05\x08\xea\x0f\x10\x0b\x12\x02\x08\x01")
    )
    assert found == ({"year": 2026, "month": 11}, 1_000_000)


def test_what_is_no_schema_of_protobuf(registry: StandIn) -> None:
    registry.register(1, {"type": "record", "name": "R", "fields": []})
    registry.register_protobuf(2, file(message("M", ("a", ".x.Gone"))).SerializeToString())
    registry.register_protobuf(3, file(message("M"), imports=("os/path.proto",)).SerializeToString())
    registry.register_protobuf(5, b"no descriptor")
    read = reader("a INT").read
    for number, rule in ((1, "protobuf_schema"), (2, "protobuf_schema"), (3, "protobuf_schema"), (4, "schema_id")):
        with pytest.raises(Broken) as caught:
            read(framed(number, b""))
        assert caught.value.rule == rule, number
    with pytest.raises(ConfigError, match="answers with the text of a schema"):
        read(framed(5, b""))
    with pytest.raises(Broken, match="wire_format"):
        read(b"\1" + framed(1, b"")[1:])
    for wanted, tombstone in ((None, "row"), ("null_value", "quarantine")):
        found = reader("a INT", tombstone=tombstone)
        assert wanted is not None or found.read(None) == (None,)
        if wanted is not None:
            with pytest.raises(Broken, match=wanted):
                found.read(None)
    assert Registry.named("schema_registry_default").schema(2) is not None


WHOLE = file(
    message(
        "M", ("i", "optional int32"), ("l", "sint64"), ("s", "optional string"), ("d", "double"), ("b", "bool"),
        ("t", STAMP), ("a", "repeated sint64"), ("o", ".p.In"), ("e", ".p.Colour"), ("u", "uint64"),
    ),
    INNER, imports=IMPORTS,
)  # fmt: skip
ON_ARROW = (
    "i INT, l BIGINT NOT NULL, s STRING, d DOUBLE, b BOOLEAN, t TIMESTAMP, a ARRAY<BIGINT>, "
    "o STRUCT<x: INT NOT NULL, z: STRING>, e STRING, u DECIMAL(20,0)"
)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
ROWS = st.fixed_dictionaries(
    {"l": st.integers(-(2**63), 2**63 - 1), "d": st.floats(), "b": st.booleans(), "u": st.integers(0, 2**64 - 1),
     "a": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), "e": st.sampled_from(["RED", "BLUE"])},
    optional={"i": st.integers(-(2**31), 2**31 - 1), "s": st.text(max_size=5), "t": TIMES,
              "o": st.fixed_dictionaries({"x": st.integers(-(2**31), 2**31 - 1)}, optional={"z": st.text(max_size=3)})},
)  # fmt: skip


@settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(rows=st.lists(ROWS, min_size=30, max_size=60), rng=st.randoms(use_true_random=False))
def test_both_paths_give_what_was_written(
    spark: SparkSession, registry: StandIn, tmp_path: Path, rows: list[dict[str, Any]], rng: random.Random
) -> None:
    registry.register_protobuf(1, WHOLE.SerializeToString())
    make = classes(WHOLE)["p.M"]
    values: list[bytes | None] = [framed(1, make(**row).SerializeToString()) for row in rows]
    for row, is_ in zip(rows, decoded(spark, values, ON_ARROW), strict=True):
        assert is_ == expected(row)
    columns = T.StructType.fromDDL(ON_ARROW)
    spec = {"protobuf": {"schema": ON_ARROW}}
    chunks = RegisteredChunks(reader_of(ProtobufDecode.model_validate(spec["protobuf"]), columns, SINCE_1901), columns)
    values[3:3] = [None, b"x"]
    moved = cloudpickle.loads(cloudpickle.dumps(chunks))
    kept, wrong = differences(spark, tmp_path, spec, moved, values, lambda: rng.randint(1, 20))
    assert wrong == []
    assert kept == len(rows) - sum("t" in row and row["t"].year < 1901 for row in rows)


def expected(row: dict[str, Any]) -> dict[str, Any]:
    made = {**row, "u": Decimal(row["u"])}
    if "t" in row:
        made["t"] = row["t"].replace(tzinfo=None)
    if "o" in row:
        made["o"] = {"z": None} | row["o"]
    return {name: plain(value) for name, value in made.items()}
