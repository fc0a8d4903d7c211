"""Keys below ``decode``, formats that are chosen for each record, and why a record was refused, in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.fixtures.golden import Golden
from tests.fixtures.specs import write

from sluice.decoders.config import CsvDecode, JsonDecode
from sluice.decoders.ddl import types_of
from sluice.decoders.explain import Explainer, explained
from sluice.decoders.per_record import ByHeader, ByTopic
from sluice.decoders.xml import XmlDecode
from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice.pipeline.sections import Decode


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Decode.model_validate({"json": {"schema": "id BIGINT", **config}})
    return str(caught.value)


def test_decode_rescues_into_a_column_with_a_name_of_its_own() -> None:
    assert Decode(json={"schema": "id BIGINT", "rescue": True}).rescues
    assert not Decode(json={"schema": "id BIGINT, _rescued STRING"}).rescues
    assert "the column _rescued is declared already" in refused({"schema": "id BIGINT, _Rescued INT", "rescue": True})
    assert "the column _rescued is declared already" in refused({"key": "_rescued", "rescue": True})


def test_decode_headers_are_columns_with_names_of_their_own() -> None:
    headers = {"a": "x", "b": "x", "c": ""}
    assert Decode(json={"schema": "id BIGINT", "key": "k", "headers": headers}).headers == headers
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
    with pytest.raises(ValidationError, match=re.escape(named)):
        XmlDecode(schema=schema, **keys)


def test_xml_attributes_are_known_by_their_prefix() -> None:
    spec = XmlDecode(schema="`n:a` INT, _b ARRAY<INT>, at_c INT, _VALUE STRING", attribute_prefix="at_", root="n:r")
    assert [spec.is_attribute(name) for name in spec.names] == [False, False, True, False]
    assert not XmlDecode(schema="_VALUE INT").is_attribute("_VALUE")


def test_ddl_types_are_written_alike() -> None:
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


def loaded(folder: Path, decode: dict[str, Any], source: dict[str, Any] = KAFKA, **sink: Any) -> Pipeline:
    spec = {"pipeline": "p", "source": source, "decode": decode, "sink": {"delta": {"path": "t", **sink}}}
    return load(write(folder, yaml.safe_dump(spec, sort_keys=False)))


def by_header(**formats: Any) -> dict[str, Any]:
    return {"by_header": {"name": "v", "formats": formats}}


def test_chosen_format_is_the_exact_entry_then_the_first_pattern_then_the_default() -> None:
    formats = {"*+json": JSON, "a*": CSV, "application/x+json": CSV, "a.b": JSON}
    plain, other = (ByHeader(name="h", formats=formats, **own) for own in ({}, {"default": CSV}))
    asked = ["application/x+json", "application/y+json", "a\nb+json", "ab", "a.b", "xab", "", None]
    assert [plain.chosen(value) for value in asked] == [2, 0, 0, 1, 3, None, None, None]
    assert [other.chosen(value) for value in asked] == [2, 0, 0, 1, 3, 4, 4, 4]
    assert [name for name, _ in other.entries][-2:] == ["formats.a.b", "default"]


def test_chosen_format_is_by_the_last_of_several_headers() -> None:
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


def test_by_topic_chooses_by_the_whole_name_unless_the_topic_is_that_of_another_cluster(tmp_path: Path) -> None:
    clusters = {"kafka": {"clusters": ["here", "there"], "topics": ["t"], "origin_header": "o"}}
    queue = {"queue": {"kind": "redis_streams", "connection": "redis", "streams": ["orders:eu", "eu"]}}
    found = {}
    for source, name, topic in ((clusters, "t", "there:t"), (queue, "orders:eu", "orders:eu"), (queue, "eu", "eu")):
        formats = {name: JSON} if source is clusters else {"orders:eu": JSON, "eu": CSV}
        chosen = loaded(tmp_path, {"by_topic": {"formats": formats}}, source).decode.chosen
        assert chosen
        found[topic] = chosen.value_of(topic, None)
    assert found == {"there:t": "t", "orders:eu": "orders:eu", "eu": "eu"}


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
    "rows without topics": {"by_topic": {"formats": {"*": JSON}}},
    "files without headers": by_header(**{"*": JSON}),
}


SOURCES: dict[str, dict[str, Any]] = {
    "rows without topics": {"rate": {"rows_per_second": 1}},
    "files without headers": {"file": {"path": "in", "format": "csv"}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_chosen_formats_that_do_not_fit_are_refused(tmp_path: Path, golden: Golden, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, REFUSED[what], SOURCES.get(what, KAFKA))
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
    deletes, upsert = {"schema": "s STRING", "key": "id", "tombstone": "delete"}, {"mode": "upsert", "key": ["id"]}

    def spec(other: dict[str, Any]) -> Pipeline:
        return loaded(tmp_path, by_header(a={"json": deletes}, b={"json": other}), **upsert)

    assert spec(deletes).decode.deletes
    for other in ({"schema": "s STRING", "key": "id"}, deletes | {"schema": "id STRING", "key": "s"}):
        with pytest.raises(ConfigError, match="key"):
            spec(other)


def test_chosen_formats_have_a_digest_of_the_formats_and_the_order_of_patterns(tmp_path: Path) -> None:
    def making(**formats: Any) -> str:
        return loaded(tmp_path, by_header(**formats)).making

    assert making(a=JSON, b=CSV) == making(b=CSV, a=JSON)
    assert len({making(a=JSON), making(b=JSON), making(a=CSV), making(**{"a*": JSON, "*b": CSV}),
                making(**{"*b": CSV, "a*": JSON})}) == 5  # fmt: skip


NESTED = (
    "id STRING, p STRUCT<sig: BIGINT, at: TIMESTAMP, d: DECIMAL(5,2), ok: BOOLEAN, raw: BINARY>, "
    "xs ARRAY<DOUBLE>, m MAP<STRING, STRUCT<t: STRING, n: INT>>, `odd.name` ARRAY<DATE>"
)
EXPLAINERS = {
    "json": Explainer.of("json", JsonDecode(schema="id INT")),
    "csv": Explainer.of("csv", CsvDecode(schema="a INT, b STRING, c DOUBLE")),
    "nested": Explainer.of("json", JsonDecode(schema=NESTED)),
    "xml": Explainer.of("xml", XmlDecode(schema="i INT")),
    "text": Explainer("text"),
}
DETAILS: dict[str, list[tuple[bytes | None, str, str | None, str | None]]] = {
    "json": [
        (None, "null_value", None, None),
        (b"\xff", "utf8", None, "byte 0xff at 0 is not UTF-8"),
        (b"ab\xc3", "utf8", "key", "byte 0xc3 at 2 is not UTF-8"),
        (b"", "json", None, "no text"),
        (b'{"id": ', "json", None, "it ends after 7 characters, in or after 'id': {\"id\": "),
        (b'{"a": 1 "', "json", None, "Expecting ',' delimiter at character 8, in or after 'a': {\"a\": 1 \""),
        (b'{"z": NaN}', "json", None, "NaN is not JSON"),
        (b'{"a": 1} {"a": 2}', "json", None, 'text follows at character 8: {"a": 1} {"a": 2}'),
        (b"[1]", "json", None, "it is an array, not an object: [1]"),
        (b'{"a":' * 5000, "json", None, "it has objects in objects, too deep to be read"),
        (b'{"s":"\\ud83d"}', "surrogate", None, "\\ud83d at character 6"),
        (b'{"id": "x"}', "type", "id", '"x"'),
        (b'{"id": 12345678901234567890123}', "digits", "id", "12345678901234567890123"),
        (b'{"x": 1}', "not_null", "id", "is missing"),
        (b'{"id": "%s"}' % (b"x" * 300), "type", "id", '"' + "x" * 199 + "… (302 characters)"),
        (b'{"id": 7}', "small", "id", "7"),
    ],
    "csv": [
        (b"1,2", "fields", None, "2 fields, and the schema has 3 columns"),
        (b'1,"x,2', "csv", None, 'a quote is not closed: 1,"x,2'),
        (b"1,a\nb,2", "csv", None, "a line break outside of quotes: 1,a\nb,2"),
        (b'1,"a\n""b""",1.5x\r\n', "type", "c", "1.5x"),
        (b"", "empty", None, None),
    ],
    "nested": [
        (b'{"p": {"sig": 62.5}}', "type", "p", "p.sig: 62.5 is no BIGINT"),
        (b'{"p": [1]}', "type", "p", "p: [1] is no STRUCT"),
        (b'{"p": {"raw": "a?"}}', "type", "p", 'p.raw: "a?" is no BINARY'),
        (b'{"xs": [1, null, "-118"]}', "type", "xs", 'xs[2]: "-118" is no DOUBLE'),
        (b'{"m": {"a": {"t": true, "n": 7}, "k.1": {"t": 1.5}}}', "type", "m", "m.k.1.t: 1.5 is no STRING"),
        (b'{"odd.name": ["2013-01-01", "2013-02-30"]}', "time", "odd.name", 'odd.name[1]: "2013-02-30" is no DATE'),
        (b'{"p": {"d": 1.005}}', "digits", "p", "p.d: 1.005 is no DECIMAL(5, 2)"),
        (b'{"p": {"d": "free"}}', "digits", "p", 'p.d: "free" is no DECIMAL(5, 2)'),
        (b'{"p": {"d": "1e3"}}', "digits", "p", 'p.d: "1e3" is no DECIMAL(5, 2)'),
        (b'{"p": {"d": "NaN"}}', "digits", "p", 'p.d: "NaN" is no DECIMAL(5, 2)'),
        (b'{"xs": [1]}', "type", None, None),
        (b'\xef\xbb\xbf{"id": "x"}', "json", None, "it begins with a byte order mark"),
    ],
    "xml": [
        (b"<r><i>1</i>", "xml", None, "no element found at line 1, character 11: <r><i>1</i>"),
        (b"<r/><r/>", "xml", None, "junk after document element at line 1, character 4: <r/><r/>"),
        (b"", "xml", None, "no element found at line 1, character 0: "),
        (b'<!DOCTYPE r [<!ENTITY e "x">]><r>&e;</r>', "xml", None, "it has a DOCTYPE, which is not read"),
        (b"<r/>", "xml", None, None),
        (b"<q><r/></q>", "root", None, "its root is 'q'"),
    ],
    "text": [(b"x", "small", "value", None), (b"\xff", "utf8", None, "byte 0xff at 0 is not UTF-8")],
}


@pytest.mark.parametrize(
    ("kind", "value", "rule", "column", "detail"), [(kind, *row) for kind, rows in DETAILS.items() for row in rows]
)
def test_detail_of_a_refused_record_names_what_is_wrong(
    kind: str, value: bytes | None, rule: str, column: str | None, detail: str | None
) -> None:
    assert EXPLAINERS[kind].detail(value, rule, column) == detail


def test_detail_is_that_of_the_chosen_format() -> None:
    formats = {"j": {"json": {"schema": "a INT, b INT"}}, "c": {"csv": {"schema": "b INT, a INT"}}}

    def detail(spec: ByHeader | ByTopic, rule: str, *headers: tuple[str, bytes | None], topic: str = "t") -> str | None:
        key = "by_header" if isinstance(spec, ByHeader) else "by_topic"
        return explained(key, spec)(
            {
                "value": b'{"a": "x"},7', "_topic": topic, "_errors": [{"rule": rule, "column": "a"}],
                "headers": [{"key": name, "value": value} for name, value in headers] or None,
            }
        )  # fmt: skip

    spec = ByHeader(name="h", formats=formats)
    assert detail(spec, "type", ("h", b"c")) == "7"
    assert detail(spec, "json", ("h", b"j")) == 'text follows at character 10: {"a": "x"},7'
    assert detail(spec, "type", ("h", b"z")) is None, "the file had a format for it when it was refused"
    assert detail(spec, "format") == "it has no header 'h'"
    assert detail(spec, "format", ("h", b"c"), ("h", None)) == "its header 'h' has no value"
    assert detail(spec, "format", ("h", b"\xffz")) == "its header 'h' is 0xff7a, which is not UTF-8"
    assert detail(spec, "format", ("h", b"z")) == "its header 'h' is 'z'"
    topics = ByTopic(formats=formats)
    assert detail(topics, "type", topic="c") == "7"
    assert detail(topics, "format", topic="x") is None
