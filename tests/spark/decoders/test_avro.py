"""Avro: each type of a schema in each column, schemas of any kind, and what a registry may answer."""

from __future__ import annotations

import json
import math
import struct
import sys
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.decoding import decoded
from tests.fixtures.registry import StandIn
from tests.fixtures.wire import logical, nested, record, written

from sluice.decoders.avro import AvroDecode
from sluice.decoders.config import CsvDecode
from sluice.decoders.registry import Registry, Schema
from sluice.draft.wire_format import columns_of
from sluice.errors import AuthorizationError, ConfigError, SourceUnreachableError
from sluice_spark.decoders.avro_values import AvroReader
from sluice_spark.decoders.conversions import EVER, Broken
from sluice_spark.decoders.wire_format import rows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

DDL = (
    "i INT, l BIGINT NOT NULL, s STRING, d DOUBLE, f FLOAT, b BOOLEAN, y BINARY, c DECIMAL(12,3), dt DATE, "
    "t TIMESTAMP, n TIMESTAMP_NTZ, a ARRAY<BIGINT>, m MAP<STRING, INT>, o STRUCT<x: INT NOT NULL, z: STRING>"
)
POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}


def brief(spark: SparkSession, values: list[bytes | None], ddl: str = DDL) -> list[Any]:
    return decoded(spark, {"avro": {"schema": ddl}}, values).brief


def reader(ddl: str) -> AvroReader:
    columns = T.StructType.fromDDL(ddl) if ddl else T.StructType()
    return AvroReader(Registry.named("schema_registry_default"), columns, EVER, tombstones="quarantine")


def outcome(own: AvroReader, value: bytes) -> Any:
    """Return the values of a record, or the rule that it breaks."""
    (found,) = rows(own, [value])
    return found.rule if isinstance(found, Broken) else found


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
    ("y", "bytes", b"\xff\0", b"\xff\0"),
    ("y", {"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
    ("y", DEC, Decimal("1.00"), b"d"),
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


def test_avro_gives_each_type_of_a_schema_its_columns(spark: SparkSession, registry: StandIn) -> None:
    values, wanted = [], []
    for n, (column, kind, value, result) in enumerate(VALUES):
        schema = record(l="long", **{column: kind}, unknown="string")
        registry.register(n, schema)
        values.append(written(n, schema, {"l": n, column: value, "unknown": "x"}))
        rule = isinstance(result, str) and result in ("type", "digits", "time", "not_null")
        wanted.append(result if rule else {"l": n, **({} if result is None else {column: result})})
    found = brief(spark, list(values))
    assert [(c, f) for c, f, w in zip(VALUES, found, wanted, strict=True) if f != w] == []
    assert sorted(registry.asked) == sorted({f"/schemas/ids/{n}" for n in range(len(VALUES))}), "each once"


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
    ("l BIGINT", record(l="long", a={"type": "array", "items": "null"}), b"\2" + b"\xfe" + b"\xff" * 7 + b"\x7f\0",
     "avro_schema"),
    ("l BIGINT, a ARRAY<INT>", record(l="long", a={"type": "array", "items": "int"}), b"\2\2\x80\x80\x80\x80\x80\1\0",
     "avro"),
    ("l BIGINT", "string", b"\2a", "avro_schema"),
]  # fmt: skip


def test_avro_schema_that_is_odd_breaks_a_rule_and_no_worker(registry: StandIn) -> None:
    for n, (ddl, schema, value, wanted) in enumerate(ODD):
        registry.register(n, schema)
        assert outcome(reader(ddl), struct.pack(">bI", 0, n) + value) == wanted, ddl
    registry.asked.clear()
    for number in (2**31, 2**32 - 1):  # Confluent's answers 404 without its own error code, as if it were not there
        assert outcome(reader(""), struct.pack(">bI", 0, number)) == "schema_id"
    assert registry.asked == []


def test_avro_record_of_a_union_is_read_by_its_schema_and_references(spark: SparkSession, registry: StandIn) -> None:
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
    found = brief(spark, [b"\0\0\0\0\3" + value for value, _ in cases], "l BIGINT, `in` STRUCT<x: INT>")
    assert [(case, is_) for case, is_ in zip(cases, found, strict=True) if is_ != case[1]] == []


@pytest.mark.parametrize(
    "answer",
    [{}, {"schema": None}, {"schema": ""}, [], "<html>", None, {"error_code": 500, "message": "an error, with 200"},
     {"schema": '"int"', "references": [{"name": "x", "subject": "gone", "version": 1}]}],
)  # fmt: skip
def test_registry_that_answers_with_no_schema_refuses_no_record(registry: StandIn, answer: Any) -> None:
    registry.schemas[1] = answer
    with pytest.raises(SourceUnreachableError) as error:
        Registry.named("schema_registry_default").schema(1)
    assert answer != {"schema": ""} or "login page" in error.value.next_step


def test_registry_check_does_not_follow_references(registry: StandIn) -> None:
    registry.register(1, POINT, references=[{"name": "x", "subject": "gone", "version": 1}])
    Registry.named("schema_registry_default").check()


def test_registry_whose_connection_has_no_host_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", '{"conn_type": "http", "port": 8081}')
    with pytest.raises(ConfigError, match="has no host"):
        Registry.named("schema_registry_default").check()


def test_registry_that_fails_names_the_cause_and_no_secret(registry: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Registry.named("schema_registry_default")
    asked.check()
    assert asked.schema(3) is None
    registry.failing = 500
    for question in (asked.check, lambda: asked.schema(3)):
        with pytest.raises(SourceUnreachableError, match="500"):
            question()
    registry.failing = 404  # of something else at this address
    with pytest.raises(SourceUnreachableError, match="404"):
        asked.schema(3)
    registry.failing, registry.login = None, ("me", "secret:word")
    with pytest.raises(AuthorizationError, match="login") as refused:
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
def test_avro_refuses_a_column_that_it_does_not_have(ddl: str) -> None:
    with pytest.raises(ValueError, match=ddl.split()[0]):
        AvroDecode.model_validate({"schema": ddl})


def test_decoder_column_may_be_named_like_a_type() -> None:
    for kind in (AvroDecode, CsvDecode):
        assert kind.model_validate({"schema": "id INT, variant STRING, struct INT, char INT"}).names[1] == "variant"


def test_avro_worker_without_fastavro_refuses_no_record(registry: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register(1, record(l="long"))
    own = reader("l BIGINT")
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"sluice\[avro\]"):
        own.read(b"\0\0\0\0\1\2")


@pytest.mark.long
def test_avro_columns_that_init_declares_take_the_records(spark: SparkSession, registry: StandIn) -> None:
    """Each type that has a column, with the values of the table above."""
    taken = [
        (kind, value, columns_of({1: Schema("AVRO", json.dumps(record(v=kind)))}, {1: 1}).columns)
        for _, kind, value, expected in VALUES
        if not isinstance(expected, str) or value == expected
    ]
    names = {columns[0][1]: f"v{n}" for n, (_, _, columns) in enumerate(taken) if columns}
    assert {"INT", "BIGINT", "STRING", "DOUBLE", "DATE", "TIMESTAMP", "DECIMAL(10,2)"} <= names.keys()
    values: list[bytes | None] = []
    for number, (kind, value, columns) in enumerate(taken):
        if columns:
            name = names[columns[0][1]]
            registry.register(number, record(**{name: kind}))
            values.append(written(number, record(**{name: kind}), {name: value}))
    assert len(values) > 20
    found = brief(spark, values, ", ".join(f"{name} {kind}" for kind, name in names.items()))
    assert [row for row in found if isinstance(row, str)] == []
