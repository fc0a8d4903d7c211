"""Why a record was refused, in words, for any value."""

from __future__ import annotations

import pytest

from sluice.decoders.chosen import ByHeader, ByTopic
from sluice.decoders.config import CsvDecode, JsonDecode
from sluice.decoders.explain import Explainer, explained
from sluice.decoders.xml import XmlDecode

JSON = Explainer.of("json", JsonDecode(schema="id INT"))
CSV = Explainer.of("csv", CsvDecode(schema="a INT, b STRING, c DOUBLE"))


@pytest.mark.parametrize(
    ("value", "rule", "column", "detail"),
    [
        (None, "null_value", None, None),
        (b"\xff", "utf8", None, "byte 0xff at 0 is not UTF-8"),
        (b"ab\xc3", "utf8", "key", "byte 0xc3 at 2 is not UTF-8"),
        (b"", "json", None, "no text"),
        (b'{"id": ', "json", None, "it ends after 7 characters, in or after 'id': {\"id\": "),
        (b'{"a": 1 "', "json", None, "Expecting ',' delimiter at character 8, in or after 'a': {\"a\": 1 \""),
        (b'{"z": NaN}', "json", None, "NaN is not JSON"),
        (b'{"a": 1} {"a": 2}', "json", None, "text follows at character 8: {\"a\": 1} {\"a\": 2}"),
        (b"[1]", "json", None, "it is an array, not an object: [1]"),
        (b'{"a":' * 5000, "json", None, "it has objects in objects, too deep to be read"),
        (b'{"s":"\\ud83d"}', "surrogate", None, "\\ud83d at character 6"),
        (b'{"id": "x"}', "type", "id", '"x"'),
        (b'{"id": 12345678901234567890123}', "digits", "id", "12345678901234567890123"),
        (b'{"x": 1}', "not_null", "id", "is missing"),
        (b'{"id": "%s"}' % (b"x" * 300), "type", "id", '"' + "x" * 199 + "… (302 characters)"),
        (b'{"id": 7}', "small", "id", "7"),
    ],
)  # fmt: skip
def test_detail_of_refused_json(value: bytes | None, rule: str, column: str | None, detail: str | None) -> None:
    assert JSON.detail(value, rule, column) == detail


@pytest.mark.parametrize(
    ("value", "rule", "column", "detail"),
    [
        (b"1,2", "fields", None, "2 fields, and the schema has 3 columns"),
        (b'1,"x,2', "csv", None, 'a quote is not closed: 1,"x,2'),
        (b"1,a\nb,2", "csv", None, "a line break outside of quotes: 1,a\nb,2"),
        (b'1,"a\n""b""",1.5x\r\n', "type", "c", "1.5x"),
        (b"", "empty", None, None),
    ],
)
def test_detail_of_refused_csv(value: bytes, rule: str, column: str | None, detail: str | None) -> None:
    assert CSV.detail(value, rule, column) == detail


NESTED = Explainer.of(
    "json",
    JsonDecode(
        schema="id STRING, p STRUCT<sig: BIGINT, at: TIMESTAMP, d: DECIMAL(5,2), ok: BOOLEAN, raw: BINARY>, "
        "xs ARRAY<DOUBLE>, m MAP<STRING, STRUCT<t: STRING, n: INT>>, `odd.name` ARRAY<DATE>"
    ),
)


@pytest.mark.parametrize(
    ("value", "rule", "column", "detail"),
    [
        (b'{"p": {"sig": 62.5}}', "type", "p", "p.sig: 62.5 is no BIGINT"),
        (b'{"p": [1]}', "type", "p", "p: [1] is no STRUCT"),
        (b'{"p": {"raw": "a?"}}', "type", "p", 'p.raw: "a?" is no BINARY'),
        (b'{"xs": [1, null, "-118"]}', "type", "xs", 'xs[2]: "-118" is no DOUBLE'),
        (b'{"m": {"a": {"t": true, "n": 7}, "k.1": {"t": 1.5}}}', "type", "m", "m.k.1.t: 1.5 is no STRING"),
        (b'{"odd.name": ["2013-01-01", "2013-02-30"]}', "time", "odd.name", 'odd.name[1]: "2013-02-30" is no DATE'),
        (b'{"p": {"d": 1.005}}', "digits", "p", "p.d: 1.005 is no DECIMAL(5, 2)"),
        (b'{"xs": [1]}', "type", None, None),
        (b'\xef\xbb\xbf{"id": "x"}', "json", None, "it begins with a byte order mark"),
    ],
)  # fmt: skip
def test_detail_of_a_nested_column_names_the_value(value: bytes, rule: str, column: str | None, detail: str) -> None:
    assert NESTED.detail(value, rule, column) == detail


@pytest.mark.parametrize(
    ("value", "rule", "detail"),
    [
        (b"<r><i>1</i>", "xml", "no element found at line 1, character 11: <r><i>1</i>"),
        (b"<r/><r/>", "xml", "junk after document element at line 1, character 4: <r/><r/>"),
        (b"", "xml", "no element found at line 1, character 0: "),
        (b'<!DOCTYPE r [<!ENTITY e "x">]><r>&e;</r>', "xml", "it has a DOCTYPE, which is not read"),
        (b"<r/>", "xml", None),
        (b"<q><r/></q>", "root", "its root is 'q'"),
    ],
)
def test_detail_of_refused_xml(value: bytes, rule: str, detail: str | None) -> None:
    assert Explainer.of("xml", XmlDecode(schema="i INT")).detail(value, rule, None) == detail


def test_detail_is_by_the_format_that_was_chosen() -> None:
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


def test_detail_of_other_formats_is_about_utf8_alone() -> None:
    assert Explainer("text").detail(b"x", "small", "value") is None
    assert Explainer("text").detail(b"\xff", "utf8", None) == "byte 0xff at 0 is not UTF-8"
