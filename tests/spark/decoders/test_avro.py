"""The documented contract of decoding Avro, against fastavro's writer, on both paths; and what a registry may do."""

from __future__ import annotations

import io
import json
import math
import random
import struct
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.decoding import differences
from tests.fixtures.registry import StandIn, stand_in
from tests.spark.decoders.conftest import outcomes, plain, records

from sluice.decoders.avro import AvroDecode
from sluice.decoders.config import CsvDecode
from sluice.decoders.registry import Registry, Schema
from sluice.draft.registered import columns_of
from sluice.errors import AuthorizationError, ConfigError, SourceUnreachableError
from sluice.pipeline.sections import Decode
from sluice_spark.arrow.registered import RegisteredChunks
from sluice_spark.decoders.avro import reader_of
from sluice_spark.decoders.avro_values import AvroReader
from sluice_spark.decoders.base import decode
from sluice_spark.decoders.converting import EVER, SINCE_1901, Broken
from sluice_spark.decoders.registered import rows

pytestmark = pytest.mark.spark

DDL = (
    "i INT, l BIGINT NOT NULL, s STRING, d DOUBLE, f FLOAT, b BOOLEAN, y BINARY, c DECIMAL(12,3), dt DATE, "
    "t TIMESTAMP, n TIMESTAMP_NTZ, a ARRAY<BIGINT>, m MAP<STRING, INT>, o STRUCT<x: INT NOT NULL, z: STRING>"
)
ON_ARROW = (
    "i INT, l BIGINT NOT NULL, s STRING, d DOUBLE, b BOOLEAN, c DECIMAL(12,3), dt DATE, t TIMESTAMP, "
    "a ARRAY<BIGINT>, o STRUCT<x: INT NOT NULL, z: STRING>"
)
POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}


def logical(kind: str, logic: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logic, **more}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def nested(**fields: Any) -> dict[str, Any]:
    return record(**fields) | {"name": "Inner"}


def written(number: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, number))
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with stand_in() as found:
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", found.connection())
        yield found


def decoded(spark: SparkSession, values: list[bytes | None], ddl: str = DDL, **keys: Any) -> list[Any]:
    spec = Decode.model_validate({"avro": {"schema": ddl, **keys}})
    return outcomes(decode(records(spark, values), spec))


DEC = logical("bytes", "decimal", precision=10, scale=2)
# column, its type in the schema of the record, the value, and what the column has, or the rule that it breaks
VALUES: list[tuple[str, Any, Any, Any]] = [
    ("i", "int", 5, 5), ("i", "long", 2**31 - 1, 2**31 - 1), ("i", "long", 2**31, "type"), ("i", "string", "5", "type"),
    ("i", ["null", "int"], None, None), ("i", "null", None, None), ("i", ["int", "string"], 1, "type"),
    ("s", "string", "é😀\0", "é😀\0"), ("s", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ("s", "bytes", b"x", "type"), ("s", "long", 1, "type"), ("s", logical("string", "uuid"), "no uuid", "no uuid"),
    ("s", ["null", "string"], "x", "x"), ("s", ["string", "null"], "x", "x"),
    ("d", "double", 0.1, 0.1), ("d", "float", 0.5, 0.5), ("d", "long", 2**53, 2.0**53), ("d", "int", -7, -7.0),
    ("d", "long", 2**53 + 1, "digits"), ("d", "double", math.inf, math.inf),
    ("f", "float", 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]), ("f", "double", 0.5, "type"),
    ("f", "int", 2**24 + 1, "digits"), ("f", "long", 2**24, 2.0**24),
    ("b", "boolean", True, True), ("b", "int", 1, "type"),
    ("y", "bytes", b"\xff\0", bytearray(b"\xff\0")),
    ("y", {"type": "fixed", "name": "F", "size": 2}, b"ab", bytearray(b"ab")),
    ("y", DEC, Decimal("1.00"), bytearray(b"d")),
    ("c", DEC, Decimal("-12.34"), Decimal("-12.340")), ("c", DEC, Decimal("0.00"), Decimal("0.000")),
    ("c", logical("bytes", "decimal", precision=20, scale=4), Decimal("1.2340"), Decimal("1.234")),
    ("c", logical("bytes", "decimal", precision=20, scale=4), Decimal("1.2345"), "digits"),
    ("c", logical("bytes", "decimal", precision=20, scale=0), Decimal(10**9), "digits"),
    ("c", logical("bytes", "decimal", precision=20), Decimal(999_999_999), Decimal("999999999.000")),
    ("c", logical("fixed", "decimal", name="F", size=5, precision=10, scale=2), Decimal("1.50"), Decimal("1.500")),
    ("c", "long", 7, Decimal("7.000")), ("c", "int", -1, Decimal("-1.000")), ("c", "double", 1.5, "type"),
    ("dt", logical("int", "date"), date(2020, 2, 29), date(2020, 2, 29)), ("dt", "int", 5, "type"),
    ("dt", logical("int", "date"), 2_932_897, "time"), ("dt", logical("int", "date"), -719_163, "time"),
    ("t", logical("long", "timestamp-millis"), 1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123000)),
    ("t", logical("long", "timestamp-micros"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999)),
    ("t", logical("long", "timestamp-millis"), 2**62, "time"), ("t", "long", 1, "type"),
    ("t", logical("long", "timestamp-nanos"), 1, "type"), ("t", logical("long", "local-timestamp-micros"), 1, "type"),
    ("n", logical("long", "local-timestamp-millis"), 1000, datetime(1970, 1, 1, 0, 0, 1)),
    ("n", logical("long", "timestamp-millis"), 1000, "type"),
    ("a", {"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
    ("a", {"type": "array", "items": "string"}, [], "type"), ("a", {"type": "map", "values": "long"}, {}, "type"),
    ("m", {"type": "map", "values": "int"}, {"k": 1}, {"k": 1}),
    ("m", {"type": "map", "values": "long"}, {"": 2**40}, "type"),
    ("o", POINT, {"x": 1}, {"x": 1, "z": None}), ("o", ["null", POINT], None, None),
    ("o", nested(z="string"), {"z": "a"}, "not_null"), ("o", nested(x="int", z="int"), {"x": 1, "z": 1}, "type"),
    ("o", nested(x="int", Z="int"), {"x": 1, "Z": 1}, {"x": 1, "z": None}),
]  # fmt: skip


def test_each_type_of_a_schema_has_its_columns(spark: SparkSession, registry: StandIn) -> None:
    values, wanted = [], []
    for n, (column, kind, value, result) in enumerate(VALUES):
        schema = record(l="long", **{column: kind}, unknown="string")
        registry.register(n, schema)
        values.append(written(n, schema, {"l": n, column: value, "unknown": "x"}))
        rule = isinstance(result, str) and result in ("type", "digits", "time", "not_null")
        wanted.append(result if rule else {"l": n, **({} if result is None else {column: result})})
    found = decoded(spark, values)
    assert [(case, is_) for case, is_, w in zip(VALUES, found, wanted, strict=True) if is_ != w] == []
    assert sorted(registry.asked) == sorted({f"/schemas/ids/{n}" for n in range(len(VALUES))}), "each once"


def test_what_is_no_record_of_its_schema_is_refused(spark: SparkSession, registry: StandIn) -> None:
    schema = record(l="long", s="string", a={"type": "array", "items": "int"})
    registry.register(1, schema)
    registry.register(2, {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]})
    registry.register(3, record(l="long", a={"type": "array", "items": "null"}))
    registry.register(4, "string")
    registry.schemas[5] = {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"}
    registry.schemas[6] = {"schema": "{"}
    whole = written(1, schema, {"l": 1, "s": "abc", "a": [1, 2]})
    deep = struct.pack(">bI", 0, 2) + b"\x02" * 100_000
    many = struct.pack(">bI", 0, 3) + b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0"
    cases: list[tuple[bytes | None, str]] = [
        (None, "null_value"), (b"", "wire_format"), (b"\0\0\0\0", "wire_format"), (b'{"l": 1}', "wire_format"),
        (b"\1" + whole[1:], "wire_format"), (b"\0\0\0\0\x63" + whole[5:], "schema_id"),
        (b"\0\xff\xff\xff\xff" + whole[5:], "schema_id"),
        (whole + b"\0", "avro"), (whole[:5], "avro"), (whole.replace(b"abc", b"a\xffc"), "utf8"),
        (deep, "avro_schema"), (many, "avro_schema"), (b"\0\0\0\0\4\2a", "avro_schema"),
        (b"\0\0\0\0\5\2a", "avro_schema"), (b"\0\0\0\0\6\2a", "avro_schema"),
        (struct.pack(">bI", 0, 1) + b"\2\2a\2\x80\x80\x80\x80\x80\1\0", "avro"),
        *((whole[:n], "avro") for n in range(6, len(whole))),
    ]  # fmt: skip
    found = decoded(spark, [value for value, _ in cases], "l BIGINT, s STRING, a ARRAY<INT>")
    assert [(case, is_) for case, is_ in zip(cases, found, strict=True) if is_ != case[1]] == []


def test_bits_that_fall_over_break_a_rule_or_give_a_row(registry: StandIn) -> None:
    schema = record(
        l="long", s=["null", "string"], a={"type": "array", "items": "int"}, m={"type": "map", "values": "int"},
        e={"type": "enum", "name": "E", "symbols": ["A"]}, c=DEC, t=logical("long", "timestamp-millis"), o=POINT,
    )  # fmt: skip
    registry.register(1, schema)
    columns = T.StructType.fromDDL("l BIGINT, s STRING, a ARRAY<INT>, m MAP<STRING, INT>, e STRING, t TIMESTAMP")
    reader = AvroReader(Registry.named("schema_registry_default"), columns, EVER, tombstones="quarantine")
    value = {"l": 9, "s": "xy", "a": [1, 2], "m": {"k": 3}, "e": "A", "c": Decimal("1.00"), "t": 5, "o": {"x": 1}}
    whole, rng = written(1, schema, value), random.Random(5)
    assert reader.read(whole)[:2] == (9, "xy")
    for _ in range(20_000):
        bits = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            bits[rng.randrange(5, len(bits))] ^= 1 << rng.randrange(8)
        (found,) = rows(reader, [bytes(bits)])
        told = found.rule if isinstance(found, Broken) else "a row"
        assert told in ("a row", "avro", "utf8", "time", "type")


def chain(first: Any, each: Any, length: int) -> dict[str, Any]:
    """Return a schema of records that each have those before them, without being written inside of each other."""
    made = [record(x=first) | {"name": "A0"}]
    made += [record(**{f"x{i}": part for i, part in enumerate(each(f"A{n - 1}"))}) | {"name": f"A{n}"}
             for n in range(1, length)]  # fmt: skip
    return record(**{f"f{n}": part for n, part in enumerate(made)})


ODD: list[tuple[str, Any, bytes, Any]] = [
    ("c DECIMAL(10,2)", record(c=logical("bytes", "decimal", precision=9, scale=None)), b"\2a", "type"),
    ("c DECIMAL(10,2)", record(c=logical("bytes", "decimal", scale=2)), b"\2a", "type"),
    ("c DECIMAL(10,2)", record(c=logical("bytes", "decimal", precision=9, scale=True)), b"\2a", "type"),
    ("c DECIMAL(10,2)", record(c=logical("bytes", "decimal", precision=10**10, scale=10**9)), b"\2a", "type"),
    ("c TIMESTAMP", record(c={"type": "long", "logicalType": ["timestamp-millis"]}), b"\2", "type"),
    ("c INT", {"type": "record", "name": "R", "fields": [{"name": "c", "type": "int"}] * 2}, b"\2\4", "avro_schema"),
    ("c INT", {"type": "record", "name": "R", "__fastavro_parsed__": True, "fields": 5}, b"", "avro_schema"),
    ("c INT", {"type": "record", "name": "R", "fields": [{"name": "c", "type": "int", "default": "no"}]}, b"\2", (1,)),
    ("f0 STRUCT<x: INT>", chain("int", lambda a: [["null", a]], 3000), b"\2" + b"\0" * 2999, "avro_schema"),
    ("f0 STRUCT<x: INT>", chain("int", lambda a: [["null", a]] * 2, 50), b"\2" + b"\0" * 98, ({"x": 1},)),
    ("f0 STRUCT<x: INT>", chain("null", lambda a: [a, a], 50), b"", "avro_schema"),
    ("c BIGINT", record(c="int"), b"\xff" * 8 + b"\1", "avro"),
    ("c DECIMAL(38,0)", record(c="int"), b"\xff" * 8 + b"\1", "avro"),
]


def test_odd_schemas_break_a_rule_and_no_worker(spark: SparkSession, registry: StandIn) -> None:
    found = []
    for n, (ddl, schema, value, _) in enumerate(ODD):
        registry.register(n, schema)
        columns = T.StructType.fromDDL(ddl)
        reader = AvroReader(Registry.named("schema_registry_default"), columns, EVER, tombstones="quarantine")
        (is_,) = rows(reader, [struct.pack(">bI", 0, n) + value])
        found.append(is_.rule if isinstance(is_, Broken) else is_)
    assert [(case[0], is_) for case, is_ in zip(ODD, found, strict=True) if is_ != case[3]] == []


@pytest.mark.parametrize(
    "answer",
    [{}, {"schema": None}, {"schema": ""}, [], "<html>", None, {"error_code": 500, "message": "an error, with 200"},
     {"schema": '"int"', "references": [{"name": "x", "subject": "gone", "version": 1}]}],
)  # fmt: skip
def test_an_answer_that_is_no_schema_refuses_no_record(registry: StandIn, answer: Any) -> None:
    registry.schemas[1] = answer
    with pytest.raises(SourceUnreachableError, match="cannot be asked"):
        Registry.named("schema_registry_default").schema(1)


def test_what_the_first_schema_refers_to_keeps_no_run_from_starting(registry: StandIn) -> None:
    registry.register(1, POINT, references=[{"name": "x", "subject": "gone", "version": 1}])
    Registry.named("schema_registry_default").check()


def test_a_number_that_no_registry_gives_is_not_asked_for(spark: SparkSession, registry: StandIn) -> None:
    reader = AvroReader(Registry.named("schema_registry_default"), T.StructType(), EVER, tombstones="quarantine")
    for number in (2**31, 2**32 - 1):  # Confluent's answers 404 without its own error code, as if it were not there
        (found,) = rows(reader, [struct.pack(">bI", 0, number)])
        assert isinstance(found, Broken)
        assert found.rule == "schema_id"
    assert registry.asked == []


def test_tombstones_keys_and_absent_fields(spark: SparkSession, registry: StandIn) -> None:
    schema = record(l="long")
    registry.register(1, schema)
    value = written(1, schema, {"l": 4})
    assert decoded(spark, [None, value], "l BIGINT, new STRING", key="k", tombstone="row") == [
        {"k": "k"},
        {"l": 4, "k": "k"},
    ]
    assert decoded(spark, [None, value], "l BIGINT NOT NULL", tombstone="row") == ["not_null", {"l": 4}]
    gone = decoded(spark, [None, value], "l BIGINT NOT NULL", key="k", tombstone="delete")
    assert gone == [{"k": "k", "_deleted": True}, {"l": 4, "k": "k", "_deleted": False}]
    assert decoded(spark, [value], "new STRING NOT NULL") == ["not_null"]


def test_schemas_that_refer_to_others(spark: SparkSession, registry: StandIn) -> None:
    base = {"type": "record", "name": "Base", "namespace": "shop", "fields": [{"name": "x", "type": "int"}]}
    middle = {"type": "record", "name": "Middle", "namespace": "shop", "fields": [{"name": "b", "type": "Base"}]}
    top = {"type": "record", "name": "Top", "fields": [{"name": "m", "type": "shop.Middle"}]}
    registry.register(1, base)
    registry.register(2, middle, references=[{"name": "shop.Base", "subject": "base", "version": 3}])
    registry.register(3, top, references=[{"name": "shop.Middle", "subject": "middle", "version": 1}])
    registry.versions |= {("base", 3): 1, ("middle", 1): 2}
    names: dict[str, Any] = {}
    for schema in (base, middle):
        fastavro.parse_schema(schema, named_schemas=names)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(top, named_schemas=names), {"m": {"b": {"x": 6}}})
    value = b"\0\0\0\0\3" + out.getvalue()
    assert decoded(spark, [value], "m STRUCT<b: STRUCT<x: INT>>") == [{"m": {"b": {"x": 6}}}]


def test_records_of_a_union_are_read_by_their_own_schema(spark: SparkSession, registry: StandIn) -> None:
    inner = {"type": "record", "name": "In", "namespace": "shop", "fields": [{"name": "x", "type": "int"}]}
    paid = {"type": "record", "name": "Paid", "namespace": "shop", "fields": [{"name": "in", "type": "In"}]}
    made = record(l="long", **{"in": "shop.In"}) | {"name": "Made"}
    odd = record(l="string") | {"name": "Odd"}
    registry.register(1, inner)
    registry.register(2, paid, references=[{"name": "shop.In", "subject": "in", "version": 1}])
    union = ["null", "shop.Paid", made, odd, "int", {"type": "fixed", "name": "Two", "size": 2}]
    registry.register(3, union, references=[{"name": "shop.Paid", "subject": "paid", "version": 1}])
    registry.versions |= {("in", 1): 1, ("paid", 1): 2}
    cases: list[tuple[bytes, Any]] = [
        (b"\2\x0e", {"in": {"x": 7}}),
        (b"\4\6\x0e", {"l": 3, "in": {"x": 7}}),
        (b"\0", "avro_schema"), (b"\6\2a", "type"), (b"\x08\2", "avro_schema"), (b"\x0aab", "avro_schema"),
        (b"\x0c", "avro"), (b"\1", "avro"), (b"", "avro"), (b"\x80", "avro"), (b"\x80" * 9 + b"\0", "avro"),
        (b"\2", "avro"), (b"\2\x0e\0", "avro"),
    ]  # fmt: skip
    found = decoded(spark, [b"\0\0\0\0\3" + value for value, _ in cases], "l BIGINT, `in` STRUCT<x: INT>")
    assert [(case, is_) for case, is_ in zip(cases, found, strict=True) if is_ != case[1]] == []


SCHEMA = record(
    i=["null", "int"], l="long", s=["null", "string"], d="double", b="boolean", c=DEC, dt=logical("int", "date"),
    t=["null", logical("long", "timestamp-micros")], a={"type": "array", "items": ["null", "long"]},
    o=["null", nested(x="int", z=["null", "string"])],
)  # fmt: skip
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**31), 2**31 - 1), "l": st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=5), "d": st.floats(), "b": st.booleans(),
        "c": st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        "dt": st.dates(), "t": st.none() | TIMES,
        "a": st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3),
        "o": st.none()
        | st.fixed_dictionaries({"x": st.integers(-(2**31), 2**31 - 1), "z": st.none() | st.text(max_size=3)}),
    }
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
    registry.register(1, SCHEMA)
    values: list[bytes | None] = [written(1, SCHEMA, row) for row in rows]
    found = decoded(spark, values, ON_ARROW)
    for row, is_ in zip(rows, found, strict=True):
        assert is_ == expected(row)
    spec = {"avro": {"schema": ON_ARROW}}
    columns = T.StructType.fromDDL(ON_ARROW)
    chunks = RegisteredChunks(reader_of(AvroDecode.model_validate(spec["avro"]), columns, SINCE_1901), columns)
    values[3:3] = [None, b"x"]
    moved = cloudpickle.loads(cloudpickle.dumps(chunks))
    kept, wrong = differences(spark, tmp_path, spec, moved, values, lambda: rng.randint(1, 20))
    assert wrong == []
    old = [r for r in rows if r["dt"].year < 1901 or (r["t"] is not None and r["t"].year < 1901)]
    assert kept == len(rows) - len(old)


def expected(row: dict[str, Any]) -> dict[str, Any]:
    made = {**row, "c": row["c"].quantize(Decimal("0.001")), "t": row["t"] and row["t"].replace(tzinfo=None)}
    return {name: plain(value) for name, value in made.items() if value is not None}


def test_a_registry_that_cannot_be_asked_refuses_no_record(registry: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Registry.named("schema_registry_default")
    asked.check()
    assert asked.schema(3) is None
    registry.failing = 500
    for question in (asked.check, lambda: asked.schema(3)):
        with pytest.raises(SourceUnreachableError, match="it answers 500"):
            question()
    registry.failing = 404  # of something else at this address
    with pytest.raises(SourceUnreachableError, match="404"):
        asked.schema(3)
    registry.failing, registry.login = None, ("me", "secret:word")
    with pytest.raises(AuthorizationError, match="refuses the login") as refused:
        asked.schema(3)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("AIRFLOW_CONN_MINE", registry.connection(login="me", password="secret:word"))
    mine = Registry.named("mine")
    assert mine.schema(3) is None
    assert "secret" not in repr(mine)
    monkeypatch.setenv("AIRFLOW_CONN_MINE", registry.connection(host="http://127.0.0.1:1"))
    with pytest.raises(SourceUnreachableError, match=r"127\.0\.0\.1:1"):
        Registry.named("mine").check()
    for host, extra in (("localhost", {"no.such.key": 1}), ("ftp://x", {}), ("http://me:hush@localhost", {})):
        connection = {"conn_type": "http", "host": host, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(connection))
        with pytest.raises(ConfigError) as wrong:
            Registry.named("mine").check()
        assert "hush" not in str(wrong.value)
    monkeypatch.delenv("AIRFLOW_CONN_MINE")
    with pytest.raises(ConfigError, match="not defined"):
        Registry.named("mine").schema(1)


@pytest.mark.parametrize("ddl", ["v VARIANT", "s VARCHAR(3)", "o STRUCT<x: CHAR(2)>", "_offset INT"])
def test_a_column_that_avro_does_not_have(ddl: str) -> None:
    with pytest.raises(ValueError, match=r"Avro has no|Sluice adds itself"):
        AvroDecode.model_validate({"schema": ddl})


def test_a_column_may_be_named_like_a_type() -> None:
    for kind in (AvroDecode, CsvDecode):
        assert kind.model_validate({"schema": "id INT, variant STRING, struct INT, char INT"}).names[1] == "variant"


def test_a_worker_without_the_package_refuses_no_record(registry: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register(1, record(l="long"))
    reader = AvroReader(
        Registry.named("schema_registry_default"),
        T.StructType([T.StructField("l", T.LongType())]),
        EVER,
        tombstones="quarantine",
    )
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"sluice\[avro\]"):
        reader.read(b"\0\0\0\0\1\2")


def test_what_init_declares_takes_the_records(spark: SparkSession, registry: StandIn) -> None:
    """Each type that has a column, with the value of the table above."""
    taken = [
        (kind, value, expected)
        for _, kind, value, expected in VALUES
        if not isinstance(expected, str) or value == expected
    ]
    schemas = {n: record(v=kind) for n, (kind, _, _) in enumerate(taken, 1)}
    found = {n: columns_of({n: Schema("AVRO", json.dumps(schema))}, {n: 1}) for n, schema in schemas.items()}
    shown = {n for n, made in found.items() if made.columns}
    assert len(shown) > 20
    for number, schema in schemas.items():
        registry.register(number, schema)
    by_type: dict[str, list[int]] = {}
    for number in shown:
        by_type.setdefault(found[number].columns[0][1], []).append(number)
    assert {"INT", "BIGINT", "STRING", "DOUBLE", "DATE", "TIMESTAMP", "DECIMAL(10,2)"} <= set(by_type)
    for kind, numbers in by_type.items():
        values: list[bytes | None] = [written(n, schemas[n], {"v": taken[n - 1][1]}) for n in numbers]
        refused = [
            (n, o) for n, o in zip(numbers, decoded(spark, values, f"v {kind}"), strict=True) if isinstance(o, str)
        ]
        assert refused == [], kind
