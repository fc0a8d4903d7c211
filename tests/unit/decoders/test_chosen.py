"""Formats that are chosen for each record: what the file may say, and which record gets which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.specs import write

from sluice.decoders.chosen import ByHeader, ByTopic
from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load

JSON = {"json": {"schema": "id INT, s STRING"}}
CSV = {"csv": {"schema": "s VARCHAR(9), id INT NOT NULL"}}
AVRO = {"avro": {"schema": "i INT"}}
KAFKA = {"kafka": {"topics": ["a", "b"]}}


def loaded(folder: Path, decode: dict[str, Any], source: dict[str, Any] = KAFKA) -> Pipeline:
    spec = {"pipeline": "p", "source": source, "decode": decode, "sink": {"delta": {"path": "t"}}}
    return load(write(folder, yaml.safe_dump(spec, sort_keys=False)))


def by_header(**formats: Any) -> dict[str, Any]:
    return {"by_header": {"name": "v", "formats": formats}}


def test_an_exact_entry_wins_then_the_first_pattern_then_the_default() -> None:
    formats = {"*+json": JSON, "a*": CSV, "application/x+json": CSV, "a.b": JSON}
    plain, other = (ByHeader(name="h", formats=formats, **own) for own in ({}, {"default": CSV}))
    asked = ["application/x+json", "application/y+json", "a\nb+json", "ab", "a.b", "xab", "", None]
    assert [plain.chosen(value) for value in asked] == [2, 0, 0, 1, 3, None, None, None]
    assert [other.chosen(value) for value in asked] == [2, 0, 0, 1, 3, 4, 4, 4]
    assert [name for name, _ in other.entries][-2:] == ["formats.a.b", "default"]


def test_of_several_headers_the_last_counts_and_what_is_no_text_chooses_nothing() -> None:
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


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (by_header(a=JSON, b={"json": {"schema": "id INT"}}), "formats.b gives other columns than formats.a: it"),
        (by_header(a=JSON, b={"json": {"schema": "id INT, s STRING, t INT"}}), "it also has the column 't'"),
        (by_header(a=JSON, b={"json": {"schema": "id BIGINT, s STRING"}}), "'id' is BIGINT, not INT"),
        (by_header(a=JSON, b={"json": {"schema": "Id INT, s STRING"}}), "it has no column 'id'"),
        (by_header(a={"text": {"key": "k"}}, b={"text": {}}), "it has no column 'k'"),
        (by_header(a={"text": {}}, b={"bytes": {}}), "'value' is BINARY, not STRING"),
        (by_header(a=JSON, b={}), "decode.by_header.formats.b: a format needs exactly one of: json, csv"),
        (by_header(a=JSON, b=by_header(c=JSON)), "decode.by_header.formats.b.by_header: unknown key"),
        (by_header(), "decode.by_header.formats: is empty"),
        (by_header(**{"": JSON}), "is empty"),
        ({"by_header": {"name": "v", "formats": {1: JSON}}}, "expected text, not 1: write '1', with the quotes"),
        ({"by_header": {"formats": {"a": JSON}}}, "decode.by_header.name: this key is required"),
        (by_header(a=AVRO, b={"avro": {**AVRO["avro"], "registry": "x"}}), "registries schema_registry_default and x"),
        ({"by_topic": {"formats": {"a": JSON}}}, "no entry is for the topic 'b', so each of its records would be"),
        ({"by_topic": {"formats": {"*": JSON, "c": CSV}}}, "source.kafka does not read a topic 'c'"),
        ({"by_topic": {"formats": {"*": JSON}}, **JSON}, "decode needs exactly one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_place_and_the_reason(
    tmp_path: Path, decode: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, decode)
    assert message in str(refused.value)


def test_what_can_be(tmp_path: Path) -> None:
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


def test_rows_are_deleted_by_one_key(tmp_path: Path) -> None:
    def spec(other: dict[str, Any]) -> Pipeline:
        deletes = {"json": {"schema": "s STRING", "key": "id", "tombstone": "delete"}}
        sink = {"delta": {"path": "t", "mode": "upsert", "key": ["id"]}}
        decode = by_header(a=deletes, b={"json": other})
        text = {"pipeline": "p", "source": KAFKA, "decode": decode, "sink": sink}
        return load(write(tmp_path, yaml.safe_dump(text)))

    assert spec({"schema": "s STRING", "key": "id", "tombstone": "delete"}).decode.deletes
    for other in ({"schema": "s STRING", "key": "id"}, {"schema": "id STRING", "key": "s", "tombstone": "delete"}):
        with pytest.raises(ConfigError, match="must be in each format, beside the same key"):
            spec(other)


@pytest.mark.parametrize(
    ("source", "key", "why"),
    [
        ({"rate": {"rows_per_second": 1}}, "by_topic", "are not in topics"),
        ({"file": {"path": "in", "format": "csv"}}, "by_header", "have no headers that their producers set"),
    ],
)
def test_other_sources_have_nothing_to_choose_by(tmp_path: Path, source: dict[str, Any], key: str, why: str) -> None:
    decode = {key: {"formats": {"*": JSON}, **({"name": "v"} if key == "by_header" else {})}}
    with pytest.raises(
        ConfigError, match=f"decode.{key}: the records of source.{next(iter(source))} {why}.* a pipeline for each"
    ):
        loaded(tmp_path, decode, source)


def test_what_decides_about_rows_is_in_the_digest_and_nothing_else(tmp_path: Path) -> None:
    def making(**formats: Any) -> str:
        return loaded(tmp_path, by_header(**formats)).making

    assert making(a=JSON, b=CSV) == making(b=CSV, a=JSON)
    assert len({making(a=JSON), making(b=JSON), making(a=CSV), making(**{"a*": JSON, "*b": CSV}),
                making(**{"*b": CSV, "a*": JSON})}) == 5  # fmt: skip
