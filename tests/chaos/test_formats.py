"""Formats that are chosen for each record: whatever dies, each is decoded by its own, or refused by name."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox

from sluice.local.topics import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
JSON: dict[str, Any] = {"json": {"schema": "id INT, s STRING"}}
CSV: dict[str, Any] = {"csv": {"schema": "s STRING, id INT"}}
XML: dict[str, Any] = {"xml": {"schema": "id INT, s STRING", "root": "r"}}
TYPE = "content-type"
GIVEN: list[tuple[list[tuple[str, bytes]], str, str | None]] = [
    ([(TYPE, b"application/json")], '{{"id": {n}, "s": "x"}}', None),
    ([(TYPE, b"text/csv")], "x,{n}", None),
    ([(TYPE, b"text/csv; charset=utf-8")], "x,{n}", None),
    ([(TYPE, b"text/csv"), ("o", b"z"), (TYPE, b"application/json")], '{{"id": {n}, "s": "x"}}', None),
    ([(TYPE, b"text/csv")], "{n}", "fields"),
    ([(TYPE, b"application/json")], "x,{n}", "json"),
    ([], '{{"id": {n}, "s": "x"}}', "format"),
    ([(TYPE, b"application/cbor")], "x,{n}", "format"),
    ([(TYPE, b"\xff")], '{{"id": {n}, "s": "x"}}', "format"),
    ([(TYPE, b"application/xml")], "<r><s>x</s><id>{n}</id></r>", None),
    ([(TYPE, b"application/xml")], "<r><s>x</s><id>{n}</id></r>{{}}", "xml"),
]
"""Headers, a value, and the rule that the record breaks."""


def configure(sandbox: Sandbox, *, more: dict[str, Any] | None = None, default: bool = False, **keys: Any) -> None:
    formats = {"application/json": JSON, "text/csv*": CSV, "application/xml": XML, **(more or {})}
    decode = {"by_header": {"name": TYPE, "formats": formats, **({"default": JSON} if default else {})}}
    sandbox.configure(decode=decode, quality={"max_quarantined": "100%"}, **keys)


def feed(sandbox: Sandbox) -> None:
    for headers, text, _ in GIVEN:
        n = len(sandbox.produced)
        sandbox.produce([Record(n % 2, b"k", text.format(n=n).encode(), NOON, headers)])


def rows(sandbox: Sandbox) -> Counter[tuple[int, str]]:
    found = sandbox.rows()
    return Counter() if found is None else Counter((r["id"], r["s"]) for r in found.to_pylist())


def refused(sandbox: Sandbox) -> Counter[str]:
    found = sandbox.rows("table_quarantine")
    return Counter() if found is None else Counter(r["_errors"][0]["rule"] for r in found.to_pylist())


def wanted(sandbox: Sandbox, *fixed: int) -> Counter[tuple[int, str]]:
    numbered = [(n, n % len(GIVEN)) for n in range(len(sandbox.produced))]
    return Counter((n, "x") for n, kind in numbered if GIVEN[kind][2] is None or kind in fixed)


@pytest.mark.long
def test_whatever_dies_each_record_is_decoded_by_its_own_format_and_what_has_none_is_kept(sandbox: Sandbox) -> None:
    configure(sandbox)
    feed(sandbox)
    sandbox.run("killed", kill_at="sink-committed")
    sandbox.run("after")
    sandbox.assert_exact()
    assert rows(sandbox) == wanted(sandbox)
    assert refused(sandbox) == Counter({"format": 3, "fields": 1, "json": 1, "xml": 1})
    shown = sandbox.cli("quarantine", str(sandbox.file), "--show", "99").stdout
    for why in (
        "'application/cbor'",
        "is 0xff, which is not UTF-8",
        "it has no header 'content-type'",
        "1 fields, and",
    ):
        assert why in shown
    configure(sandbox, more={"application/cbor": CSV}, default=True)
    sandbox.run("moved", redriven="quarantined")
    assert rows(sandbox) == wanted(sandbox, 6, 7, 8)
    assert refused(sandbox) == Counter({"fields": 1, "json": 1, "xml": 1})
    sandbox.assert_balanced()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal", "hot", "ignore_batch", "ignore_range"])
@pytest.mark.parametrize("point", ["rows-staged", "sink-committed"])
def test_under_each_strategy(sandbox: Sandbox, recovery: str, point: str) -> None:
    configure(sandbox, recovery=recovery)
    feed(sandbox)
    sandbox.run("killed", kill_at=point)
    feed(sandbox)
    sandbox.run("after")
    sandbox.assert_exact()
    assert rows(sandbox) == wanted(sandbox)
    assert refused(sandbox) == Counter({"format": 6, "fields": 2, "json": 2, "xml": 2})


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_an_interval_decodes_again_by_what_the_file_names_now(sandbox: Sandbox, recovery: str) -> None:
    configure(sandbox, recovery=recovery)
    feed(sandbox)
    sandbox.run("first")
    assert rows(sandbox) == wanted(sandbox)
    configure(sandbox, default=True, recovery=recovery)
    sandbox.run("again", interval=("2026-03-01", "2026-03-02"))
    assert rows(sandbox) == wanted(sandbox, 6, 8)
    assert refused(sandbox) == Counter({"json": 2, "fields": 1, "xml": 1}), "by the default, a line of CSV is no JSON"
    sandbox.assert_balanced()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_a_format_for_each_topic(sandbox: Sandbox, recovery: str) -> None:
    other = f"{sandbox.topic}-csv"
    sandbox.topics.create(other, 1)
    decode = {"by_topic": {"formats": {sandbox.topic: JSON, "*-csv": CSV}}}
    sandbox.configure(decode=decode, recovery=recovery, kafka={"topics": [sandbox.topic, other]})
    sandbox.feed(8, bad_every=4)
    sandbox.produce([(0, b"k", b"x,100"), (0, b"k", b"101"), (0, b"k", b"y,102")], topic=other)
    sandbox.run("killed", kill_at="sink-committed")
    sandbox.run("after")
    assert sorted(n for n, _ in rows(sandbox)) == [1, 2, 3, 5, 6, 7, 100, 102]
    assert refused(sandbox) == Counter({"json": 2, "fields": 1})
    sandbox.assert_balanced()
