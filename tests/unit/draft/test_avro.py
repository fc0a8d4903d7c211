"""The columns that schemas of a registry become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.decoders.registry import Schema
from sluice.draft.draft import draft
from sluice.draft.registered import Columns, columns_of, schema_numbers
from sluice.draft.sample import Sampled
from sluice.pipeline import Pipeline


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields]}


def of(*schemas: Any, counts: tuple[int, ...] | None = None) -> Columns:
    known = {n: Schema("AVRO", json.dumps(schema)) for n, schema in enumerate(schemas, 1)}
    return columns_of(known, dict(enumerate(counts or (1,) * len(schemas), 1)))


def value(number: int) -> bytes:
    return b"\0" + number.to_bytes(4) + b"..."


@pytest.mark.parametrize(
    ("avro", "column"),
    [
        ("long", "BIGINT"),
        (["null", "int"], "INT"),
        ({"type": "int", "logicalType": "date"}, "DATE"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "TIMESTAMP_NTZ"),
        ({"type": "long", "logicalType": "time-micros"}, "BIGINT"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "DECIMAL(9,2)"),
        ({"type": "fixed", "name": "F", "size": 16}, "BINARY"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "STRING"),
        ({"type": "array", "items": ["null", "double"]}, "ARRAY<DOUBLE>"),
        ({"type": "map", "values": {"type": "array", "items": "string"}}, "MAP<STRING, ARRAY<STRING>>"),
        (record(("x", "int"), ("order", ["null", "string"]), name="In"), "STRUCT<x: INT, `order`: STRING>"),
    ],
)
def test_each_type_has_the_column_that_takes_it(avro: Any, column: str) -> None:
    found = of(record(("a", avro)))
    assert (found.columns, found.doubts) == ((("a", column),), [])
    assert found.full == (() if isinstance(avro, list) else ("a",))


@pytest.mark.parametrize(
    ("avro", "why"),
    [
        ({"type": "map", "values": "null"}, "holds nothing but null"),
        (["int", "string"], "may have one of several types"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "is a decimal of 50 digits"),
    ],
)
def test_what_no_column_takes_is_left_out_and_told(avro: Any, why: str) -> None:
    found = of(record(("id", "long"), ("a", avro)))
    assert found.columns == (("id", "BIGINT"),)
    (doubt,) = found.doubts
    assert doubt.startswith(f"a: {why}")


@pytest.mark.parametrize("avro", [{"type": "array", "items": "null"}, ["null", "Order"]])
def test_a_schema_that_the_decoder_does_not_read_has_no_columns(avro: Any) -> None:
    found = of(record(("id", "long"), ("a", avro)))
    assert found.columns == ()
    assert "1 records were written with schema 1, which is no Avro record that can be read" in found.doubts[0]


def test_a_type_that_has_a_name_is_found_by_it() -> None:
    place = record(("city", "string"), name="Place")
    found = of(record(("home", place), ("work", ["null", "Place"])))
    assert found.columns == (("home", "STRUCT<city: STRING>"), ("work", "STRUCT<city: STRING>"))
    referring = Schema("AVRO", json.dumps(record(("work", "shop.Place"))), (json.dumps(place | {"namespace": "shop"}),))
    assert columns_of({1: referring}, {1: 1}).columns == (("work", "STRUCT<city: STRING>"),)


def test_columns_take_the_records_of_all_schemas() -> None:
    first = record(("id", "int"), ("gone", "string"), ("at", record(("x", "float"), name="At")), ("odd", "int"))
    second = record(("new", "int"), ("id", "long"), ("at", record(("y", "int"), name="At")), ("odd", "string"))
    found = of(first, second, counts=(5, 3))
    assert dict(found.columns) == {
        "new": "INT", "id": "BIGINT", "at": "STRUCT<x: FLOAT, y: INT>", "odd": "INT", "gone": "STRING",
    }  # fmt: skip
    assert [name for name, _ in found.columns][:2] == ["new", "id"], "in the order of the newest schema"
    assert found.full == ("id", "at", "odd")
    assert found.doubts == ["odd: is STRING in schema 2; as it is declared, 3 records of that schema would be refused"]


def test_the_records_of_a_union_have_the_fields_of_all() -> None:
    found = of([record(("id", "long"), ("a", "int"), name="A"), record(("id", "int"), ("b", "int"), name="B")])
    assert found.columns == (("id", "BIGINT"), ("a", "INT"), ("b", "INT"))
    assert found.full == ("id",)


def test_names_that_no_column_can_have_are_left_out() -> None:
    found = of(record(("id", "int"), ("ID", "int"), ("_offset", "int")))
    assert found.columns == (("id", "INT"),)
    assert len(found.doubts) == 2


def drafted(schemas: dict[int, Schema | None], *numbers: int | None) -> Any:
    values = [None if n is None else value(n) for n in numbers]
    records = [Sampled(0, n, 1_767_225_600_000, None, v) for n, v in enumerate(values)]
    return draft(records, topic="t", name="t", connection="kafka_default", registry="theirs", schemas=schemas)


def test_what_the_registry_does_not_have_or_is_not_avro_is_told() -> None:
    made = drafted({1: Schema("AVRO", json.dumps(record(("order_id", "long")))), 2: None}, 1, 1, 2, None)
    assert (made.columns, made.key) == ((("order_id", "BIGINT"),), "order_id")
    assert "registry: theirs" in made.pipeline
    told = " ".join(made.doubts)
    assert "1 records were written with schema 2, which the registry does not have" in told
    assert "1 of 4 records have no value" in told
    for other in (Schema("PROTOBUF", "syntax"), Schema("AVRO", '"string"'), Schema("AVRO", "{")):
        made = drafted({1: other}, 1, 1)
        assert "text: {}" in made.pipeline
        assert "2 records were written with schema 1, which is " in made.doubts[0]
        assert "define the connection" not in " ".join(made.doubts)


def test_a_draft_is_a_valid_pipeline() -> None:
    import yaml

    placed = {"type": "long", "logicalType": "timestamp-millis"}
    made = drafted({7: Schema("AVRO", json.dumps(record(("id", "string"), ("placed_at", placed))))}, 7)
    spec = Pipeline.model_validate(yaml.safe_load(made.pipeline))
    assert spec.decode.config.names == ["id", "placed_at"]
    assert made.event_time == "placed_at"
    suite = json.loads(made.suite)
    assert {(e["kwargs"]["column"], e["severity"]) for e in suite["expectations"]} == {
        ("id", "critical"), ("id", "warning"), ("placed_at", "warning"),
    }  # fmt: skip


def test_only_what_most_records_begin_with_is_a_number() -> None:
    def numbers(*values: bytes | None) -> dict[int, int]:
        return schema_numbers([Sampled(0, n, 0, None, v) for n, v in enumerate(values)])

    assert numbers(value(3), value(3), b"{}", None) == {3: 2}
    assert numbers(value(3), b"{}", b"\0") == {}
    assert numbers() == {}
