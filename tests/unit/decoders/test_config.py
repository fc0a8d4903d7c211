"""Keys below ``decode``: columns, formats that are chosen for each record, XML, and types of DDL schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.fixtures.golden import Golden
from tests.fixtures.specs import write

from sluice.decoders.chosen import ByHeader, ByTopic
from sluice.decoders.ddl import types_of
from sluice.decoders.xml import XmlDecode
from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
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


JSON = {"json": {"schema": "id INT, s STRING"}}
CSV = {"csv": {"schema": "s VARCHAR(9), id INT NOT NULL"}}
AVRO = {"avro": {"schema": "i INT"}}
KAFKA = {"kafka": {"topics": ["a", "b"]}}


def loaded(folder: Path, decode: dict[str, Any], source: dict[str, Any] = KAFKA) -> Pipeline:
    spec = {"pipeline": "p", "source": source, "decode": decode, "sink": {"delta": {"path": "t"}}}
    return load(write(folder, yaml.safe_dump(spec, sort_keys=False)))


def by_header(**formats: Any) -> dict[str, Any]:
    return {"by_header": {"name": "v", "formats": formats}}


def test_exact_entry_wins_then_the_first_pattern_then_the_default() -> None:
    formats = {"*+json": JSON, "a*": CSV, "application/x+json": CSV, "a.b": JSON}
    plain, other = (ByHeader(name="h", formats=formats, **own) for own in ({}, {"default": CSV}))
    asked = ["application/x+json", "application/y+json", "a\nb+json", "ab", "a.b", "xab", "", None]
    assert [plain.chosen(value) for value in asked] == [2, 0, 0, 1, 3, None, None, None]
    assert [other.chosen(value) for value in asked] == [2, 0, 0, 1, 3, 4, 4, 4]
    assert [name for name, _ in other.entries][-2:] == ["formats.a.b", "default"]


def test_last_of_several_headers_counts() -> None:
    spec = ByHeader(name="h", formats={"*": JSON})
    for headers, value in [
        (None, None),
        ([], None),
        ([("H", b"x")], None),
        ([("h", b"x"), ("h", b"y"), ("o", b"z")], "y"),
        ([("h", b"x"), ("h", None)], None),
        ([("h", b"x"), ("h", b"\xff")], None),
        ([("h", b"")], ""),
    ]:
        assert spec.value_of("t", headers) == value
    assert ByTopic(formats={"*": JSON}).value_of("there:t", None) == "t", "the topic of another cluster"


REFUSED: dict[str, dict[str, Any]] = {
    "nullable": by_header(a=JSON, b={"json": {"schema": "id INT"}}),
    "more columns": by_header(a=JSON, b={"json": {"schema": "id INT, s STRING, t INT"}}),
    "another type": by_header(a=JSON, b={"json": {"schema": "id BIGINT, s STRING"}}),
    "another case": by_header(a=JSON, b={"json": {"schema": "Id INT, s STRING"}}),
    "no key": by_header(a={"text": {"key": "k"}}, b={"text": {}}),
    "bytes and text": by_header(a={"text": {}}, b={"bytes": {}}),
    "no format": by_header(a=JSON, b={}),
    "nested": by_header(a=JSON, b=by_header(c=JSON)),
    "no entries": by_header(),
    "empty entry": by_header(**{"": JSON}),
    "number": {"by_header": {"name": "v", "formats": {1: JSON}}},
    "no header": {"by_header": {"formats": {"a": JSON}}},
    "two registries": by_header(a=AVRO, b={"avro": {**AVRO["avro"], "registry": "x"}}),
    "topic without entry": {"by_topic": {"formats": {"a": JSON}}},
    "entry without topic": {"by_topic": {"formats": {"*": JSON, "c": CSV}}},
    "two decoders": {"by_topic": {"formats": {"*": JSON}}, **JSON},
}


@pytest.mark.parametrize("what", REFUSED)
def test_chosen_formats_that_do_not_fit_are_refused(tmp_path: Path, golden: Golden, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, REFUSED[what])
    golden("check", refused.value)


@pytest.mark.parametrize(
    ("key", "source"),
    [
        ("by_topic", {"rate": {"rows_per_second": 1}}),
        ("by_header", {"file": {"path": "in", "format": "csv"}}),
    ],
)
def test_source_without_topics_or_headers_has_no_chosen_formats(
    tmp_path: Path, golden: Golden, key: str, source: dict[str, Any]
) -> None:
    decode = {key: {"formats": {"*": JSON}, **({"name": "v"} if key == "by_header" else {})}}
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, decode, source)
    golden("check", refused.value)


def test_chosen_formats_that_fit_are_loaded(tmp_path: Path) -> None:
    assert loaded(tmp_path, by_header(a=JSON, b=CSV)).decode.names == ["id", "s"]
    assert loaded(tmp_path, {"by_topic": {"formats": {"a": JSON}, "default": CSV}}).decode.key == "by_topic"
    assert loaded(tmp_path, {"by_topic": {"formats": {"a": JSON, "*": CSV}}}).decode.chosen
    pattern = {"kafka": {"pattern": "x[.].*"}}
    assert loaded(tmp_path, {"by_topic": {"formats": {"x.1": JSON}}}, pattern).decode.chosen, "others may appear"
    queue = {"queue": {"kind": "redis_streams", "connection": "redis", "streams": ["a"]}}
    assert loaded(tmp_path, {"by_topic": {"formats": {"a": JSON}}}, queue).decode.chosen
    spec = loaded(tmp_path, by_header(a=AVRO, b={"json": {"schema": "i INT", "rescue": True}}))
    assert (spec.decode.needs, spec.decode.rescues, spec.decode.asks_headers) == ("schema_registry_default", True, True)
    assert not loaded(tmp_path, {"by_topic": {"formats": {"*": JSON}}}).decode.asks_headers
    named = {"text": {"headers": {"h": "x"}}}
    assert loaded(tmp_path, {"by_topic": {"formats": {"*": named}}}).decode.asks_headers


def test_chosen_formats_delete_rows_by_one_key(tmp_path: Path) -> None:
    def spec(other: dict[str, Any]) -> Pipeline:
        deletes = {"json": {"schema": "s STRING", "key": "id", "tombstone": "delete"}}
        sink = {"delta": {"path": "t", "mode": "upsert", "key": ["id"]}}
        decode = by_header(a=deletes, b={"json": other})
        text = {"pipeline": "p", "source": KAFKA, "decode": decode, "sink": sink}
        return load(write(tmp_path, yaml.safe_dump(text)))

    assert spec({"schema": "s STRING", "key": "id", "tombstone": "delete"}).decode.deletes
    for other in ({"schema": "s STRING", "key": "id"}, {"schema": "id STRING", "key": "s", "tombstone": "delete"}):
        with pytest.raises(ConfigError, match="key"):
            spec(other)


def test_digest_has_the_order_of_patterns_and_the_formats(tmp_path: Path) -> None:
    def making(**formats: Any) -> str:
        return loaded(tmp_path, by_header(**formats)).making

    assert making(a=JSON, b=CSV) == making(b=CSV, a=JSON)
    assert len({making(a=JSON), making(b=JSON), making(a=CSV), making(**{"a*": JSON, "*b": CSV}),
                making(**{"*b": CSV, "a*": JSON})}) == 5  # fmt: skip
