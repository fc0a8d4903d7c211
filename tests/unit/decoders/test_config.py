"""Keys below ``decode``, ``decode.xml``, and types of DDL schemas."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.decoders.ddl import types_of
from sluice.decoders.xml import XmlDecode
from sluice.pipeline.sections import Decode


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Decode.model_validate({"json": {"schema": "id BIGINT", **config}})
    return str(caught.value)


def test_rescued_column_has_a_name_of_its_own() -> None:
    assert Decode(json={"schema": "id BIGINT", "rescue": True}).rescues
    assert not Decode(json={"schema": "id BIGINT, _rescued STRING"}).rescues
    assert "the column _rescued is declared already" in refused({"schema": "id BIGINT, _Rescued INT", "rescue": True})
    assert "the column _rescued is declared already" in refused({"key": "_rescued", "rescue": True})


def test_header_columns_have_names_of_their_own() -> None:
    found = Decode(json={"schema": "id BIGINT", "key": "k", "headers": {"a": "x", "b": "x", "c": ""}})
    assert found.headers == {"a": "x", "b": "x", "c": ""}
    assert Decode(bytes={}).headers == {}
    for headers, why in (
        ({"ID": "x"}, "headers: the column 'ID' is declared already"),
        ({"K": "x"}, "headers: the column 'K' is declared already"),
        ({"a": "x", "A": "y"}, "headers: the column 'A' is declared already"),
        ({"_offset": "x"}, "a name that Sluice adds itself"),
        ({"a b": "x"}, "not the name of a column"),
        ({"a": None}, "string"),
    ):
        assert why in refused({"key": "k", "headers": headers})
    assert "the column _rescued is declared already" in refused({"headers": {"_rescued": "x"}, "rescue": True})


@pytest.mark.parametrize(
    ("schema", "keys", "named"),
    [
        ("m MAP<STRING, INT>", {}, "MAP"),
        ("a ARRAY<STRUCT<v: VARIANT>>", {}, "VARIANT"),
        ("a STRUCT<b: BINARY>", {}, "BINARY"),
        ("a ARRAY<ARRAY<INT>>", {}, "'a' is an array of arrays"),
        ("_a ARRAY<INT>", {}, "'_a' is an attribute"),
        ("o STRUCT<_a: STRUCT<x: INT>>", {}, "'_a' is an attribute"),
        ("o STRUCT<_VALUE: ARRAY<INT>>", {}, "'_VALUE'"),
        ("_topic STRING", {}, "_topic"),
        ("a INT", {"attribute_prefix": ""}, "attribute_prefix"),
        ("a INT", {"attribute_prefix": "a b"}, "attribute_prefix"),
        ("a INT", {"root": "<r>"}, "root"),
        ("a INT", {"key": "A"}, "'A'"),
        ("a INT", {"tombstone": "delete"}, "key"),
    ],
)
def test_xml_schema_that_xml_cannot_have_is_refused(schema: str, keys: dict[str, str], named: str) -> None:
    with pytest.raises(ValidationError) as refused:
        XmlDecode(schema=schema, **keys)
    assert named in str(refused.value)


def test_xml_attributes_are_known_by_their_prefix() -> None:
    spec = XmlDecode(schema="`n:a` INT, _b ARRAY<INT>, at_c INT, _VALUE STRING", attribute_prefix="at_", root="n:r")
    assert [spec.is_attribute(name) for name in spec.names] == [False, False, True, False]
    assert not XmlDecode(schema="_VALUE INT").is_attribute("_VALUE")


def test_types_of_a_ddl_schema_are_written_alike() -> None:
    declared = (
        "a INT NOT NULL, b VARCHAR(3), c DECIMAL, d DECIMAL(5), e ARRAY<STRUCT<`x y`: TINYINT NOT NULL, z: CHAR(2)>>, "
        "f MAP<STRING, LONG>, g TIMESTAMP_NTZ, h TIMESTAMP, i BYTE, j VARIANT"
    )
    assert types_of(declared) == {
        "a": "INT", "b": "STRING", "c": "DECIMAL(10,0)", "d": "DECIMAL(5,0)",
        "e": "ARRAY<STRUCT<x y: TINYINT, z: STRING>>", "f": "MAP<STRING, BIGINT>", "g": "TIMESTAMP_NTZ",
        "h": "TIMESTAMP", "i": "TINYINT", "j": "VARIANT",
    }  # fmt: skip
    assert list(types_of("b INT, a INT")) == ["b", "a"]
