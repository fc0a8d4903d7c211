"""Headers as columns, a format for each record, and schemas of a registry, over several runs of each kind."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.chaos.cases import LONG, WAYS
from tests.chaos.commands import ALL_BAD, listed
from tests.fixtures.registry import StandIn, stand_in
from tests.fixtures.runs import Sandbox

from sluice.local.topics import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
DAY = ("2026-03-01", "2026-03-02")

JSON: dict[str, Any] = {"json": {"schema": "id INT, s STRING"}}
CSV: dict[str, Any] = {"csv": {"schema": "s STRING, id INT"}}
XML: dict[str, Any] = {"xml": {"schema": "id INT, s STRING", "root": "r"}}
TYPE = "content-type"
FORMATS = {"application/json": JSON, "text/csv*": CSV, "application/xml": XML}

Given = list[tuple[list[tuple[str, bytes]], str, tuple[Any, ...] | str]]
"""Headers, a value, and the columns behind ``id``; or the rule that the record breaks."""

BY_HEADER: Given = [
    ([(TYPE, b"application/json")], '{{"id": {n}, "s": "x"}}', ("x",)),
    ([(TYPE, b"text/csv")], "x,{n}", ("x",)),
    ([(TYPE, b"text/csv; charset=utf-8")], "x,{n}", ("x",)),
    ([(TYPE, b"text/csv"), ("o", b"z"), (TYPE, b"application/json")], '{{"id": {n}, "s": "x"}}', ("x",)),
    ([(TYPE, b"text/csv")], "{n}", "fields"),
    ([(TYPE, b"application/json")], "x,{n}", "json"),
    ([], '{{"id": {n}, "s": "x"}}', "format"),
    ([(TYPE, b"application/cbor")], "x,{n}", "format"),
    ([(TYPE, b"\xff")], '{{"id": {n}, "s": "x"}}', "format"),
    ([(TYPE, b"application/xml")], "<r><s>x</s><id>{n}</id></r>", ("x",)),
    ([(TYPE, b"application/xml")], "<r><s>x</s><id>{n}</id></r>{{}}", "xml"),
]
HEADERS: Given = [
    (headers, '{{"id": {n}}}', columns)
    for headers, columns in [
        ([], (None, None)),
        ([("trace-id", b"a")], ("a", None)),
        ([("trace-id", b"a"), ("o", b"x"), ("trace-id", b"b")], ("b", "x")),
        ([("trace-id", b"a"), ("trace-id", b"")], ("", None)),
        ([("trace-id", b""), ("Trace-Id", b"z"), ("other", b"\xff")], ("", None)),
        ([("o", "é😀".encode()), ("", b"y")], (None, "é😀")),
        ([("o", b"\xff")], "header"),
        ([("o", b"\xff"), ("o", b"sound")], (None, "sound")),
    ]
]
EVERY_WAY = [*WAYS, ("wal", "spark"), ("ignore_batch", "auto"), ("ignore_range", "spark")]
CASES: dict[str, tuple[Given, tuple[str, ...]]] = {
    "headers": (HEADERS, ("trace", "origin")),
    "by_header": (BY_HEADER, ("s",)),
}


def by_header(**more: Any) -> dict[str, Any]:
    formats = {"formats": FORMATS | more.pop("formats", {})}
    return {"by_header": {"name": TYPE, **formats, **more}}


def headers(schema: str = "id BIGINT") -> dict[str, Any]:
    return {"json": {"schema": schema, "headers": {"trace": "trace-id", "origin": "o"}}}


def configure(sandbox: Sandbox, decode: dict[str, Any], **keys: Any) -> None:
    sandbox.configure(decode=decode, **ALL_BAD, **keys)


def feed(sandbox: Sandbox, case: str) -> None:
    for given, text, _ in CASES[case][0]:
        n = len(sandbox.produced)
        sandbox.produce([Record(n % 2, b"k", text.format(n=n).encode(), NOON, given)])


def rows(sandbox: Sandbox, *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in ("id", *columns)) for row in listed(sandbox))


def refused(sandbox: Sandbox) -> Counter[str]:
    return Counter(row["_errors"][0]["rule"] for row in listed(sandbox, "table_quarantine"))


def check(sandbox: Sandbox, case: str, mended: tuple[int, ...] = ()) -> None:
    """Compare rows and refusals with what was produced; the kinds in ``mended`` were refused and are rows by now."""
    given, columns = CASES[case]
    wanted: Counter[tuple[Any, ...]] = Counter()
    broken: Counter[str] = Counter()
    for n in range(len(sandbox.produced)):
        kind = n % len(given)
        result = given[kind][2]
        if kind in mended:
            wanted[(n, "x")] += 1
        elif isinstance(result, str):
            broken[result] += 1
        else:
            wanted[(n, *result)] += 1
    assert rows(sandbox, *columns) == wanted
    assert refused(sandbox) == broken


@LONG
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_header_columns_are_the_same_by_an_interval_and_a_redrive(sandbox: Sandbox, recovery: str) -> None:
    configure(sandbox, headers("id BIGINT, n INT NOT NULL"), recovery=recovery)
    feed(sandbox, "headers")
    sandbox.run("refused")
    assert rows(sandbox) == Counter()
    configure(sandbox, headers("id BIGINT, n INT"), recovery=recovery)
    sandbox.run("moved", redriven="quarantined")
    check(sandbox, "headers")
    sandbox.run("again", interval=DAY)
    check(sandbox, "headers")
    sandbox.assert_balanced()


@LONG
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_by_header_redrive_and_interval_decode_by_the_file_as_it_is(sandbox: Sandbox, recovery: str) -> None:
    configure(sandbox, by_header(), recovery=recovery)
    feed(sandbox, "by_header")
    sandbox.run("first")
    check(sandbox, "by_header")
    shown = sandbox.cli("quarantine", str(sandbox.file), "--show", "99").stdout
    assert all(token in shown for token in ("'application/cbor'", "0xff", "'content-type'"))
    configure(sandbox, by_header(formats={"application/cbor": CSV}, default=JSON), recovery=recovery)
    sandbox.run("moved", redriven="quarantined")
    check(sandbox, "by_header", mended=(6, 7, 8))
    configure(sandbox, by_header(default=JSON), recovery=recovery)
    sandbox.run("again", interval=DAY)
    assert rows(sandbox) == Counter((n,) for n in (0, 1, 2, 3, 6, 8, 9))
    assert refused(sandbox) == Counter({"json": 2, "fields": 1, "xml": 1}), "by the default, a line of CSV is no JSON"
    sandbox.assert_balanced()


@LONG
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_by_topic_decodes_each_topic_by_its_format_when_drivers_are_killed(sandbox: Sandbox, recovery: str) -> None:
    other = f"{sandbox.topic}-csv"
    sandbox.topics.create(other, 1)
    decode = {"by_topic": {"formats": {sandbox.topic: JSON, "*-csv": CSV}}}
    sandbox.configure(decode=decode, recovery=recovery, kafka={"topics": [sandbox.topic, other]})
    sandbox.feed(8, bad_every=4)
    sandbox.produce([(0, b"k", b"x,100"), (0, b"k", b"101"), (0, b"k", b"y,102")], topic=other)
    sandbox.run("killed", kill_at="sink-committed")
    sandbox.run("after")
    assert rows(sandbox) == Counter((n,) for n in (1, 2, 3, 5, 6, 7, 100, 102))
    assert refused(sandbox) == Counter({"json": 2, "fields": 1})
    sandbox.assert_balanced()


# --- a registry of schemas -------------------------------------------------------------------------------------------

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "new", "type": "string"}]}
FILE = FileDescriptorProto(name="r", syntax="proto3")
FILE.message_type.add(name="R").field.add(name="id", number=1, label=1, type=3)


@pytest.fixture
def registry() -> Iterator[StandIn]:
    with stand_in() as found:
        found.login = ("me", "hush")
        yield found


def access(registry: StandIn) -> dict[str, Any]:
    return {"AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT": registry.connection(login="me", password="hush")}


def register(registry: StandIn, number: int, form: str = "avro") -> None:
    if form == "avro":
        registry.register(number, SCHEMA)
    else:
        registry.register_protobuf(number, FILE.SerializeToString())


def feed_coded(sandbox: Sandbox, number: int, count: int, form: str = "avro") -> None:
    for _ in range(count):
        n, value = len(sandbox.produced), io.BytesIO()
        if form == "avro":
            fastavro.schemaless_writer(value, fastavro.parse_schema(SCHEMA), {"id": n, "new": "x"})
        else:  # the first message of its file; the field 1, a small number; and a field that no column has
            value.write(bytes([0, 0x08, n, 0x12, 1, 0x78]))
        sandbox.produce([Record(n % 2, b"k", struct.pack(">bI", 0, number) + value.getvalue(), NOON)])


@LONG
@pytest.mark.parametrize("form", ["avro", "protobuf"])
@pytest.mark.parametrize(("recovery", "engine"), EVERY_WAY)
def test_registry_that_is_down_costs_no_record_and_an_unknown_schema_is_refused_and_redriven(
    sandbox: Sandbox, registry: StandIn, form: str, recovery: str, engine: str
) -> None:
    register(registry, 1, form)
    env = access(registry)
    configure(sandbox, {form: {"schema": "id BIGINT NOT NULL"}}, recovery=recovery, engine=engine)
    feed_coded(sandbox, 1, 8, form)
    feed_coded(sandbox, 2, 2, form)
    sandbox.run("killed", kill_at="sink-committed", **env)
    registry.failing = 503
    down = sandbox.run("down", expect=20, **env)
    assert "hush" not in down.stderr
    registry.failing = None
    sandbox.run("after", **env)
    sandbox.assert_exact()
    assert rows(sandbox) == Counter((n,) for n in range(8))
    assert "schema_id" in sandbox.cli("quarantine", str(sandbox.file), "--show", "1", **env).stdout
    register(registry, 2, form)
    sandbox.run("redriven", redriven="quarantined", **env)
    assert rows(sandbox) == Counter((n,) for n in range(10))
    assert sandbox.quarantine() == Counter()


@LONG
@pytest.mark.parametrize("recovery", ["ignore_range", "ignore_batch", "wal"])
def test_registry_that_cannot_give_one_schema_loses_no_record(
    sandbox: Sandbox, registry: StandIn, recovery: str
) -> None:
    """It answers, and takes the login, before the run and after it failed."""
    sandbox.configure(decode={"avro": {"schema": "id BIGINT NOT NULL"}}, recovery=recovery)
    for number in (1, 2):
        register(registry, number)
        feed_coded(sandbox, number, 4)
    env = access(registry)
    registry.broken = {2}
    sandbox.run("first", expect=20, **env)
    registry.broken = set()
    sandbox.run("second", **env)
    registry.broken = {2}
    sandbox.run("again", interval=DAY, expect=20, **env)
    registry.broken = set()
    sandbox.assert_exact()
    assert rows(sandbox) == Counter((n,) for n in range(8))
    assert sandbox.total("lost") == 0


@LONG
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_registry_that_dies_while_a_batch_is_read_refuses_no_record(
    sandbox: Sandbox, registry: StandIn, engine: str
) -> None:
    sandbox.configure(decode={"avro": {"schema": "id BIGINT NOT NULL"}}, engine=engine)
    register(registry, 1)
    feed_coded(sandbox, 1, 8)
    registry.last_answers = 1  # to the driver, before the run
    sandbox.run("first", expect=20, **access(registry))
    assert sandbox.sink() + sandbox.quarantine() == Counter()
    registry.last_answers = None
    sandbox.run("second", **access(registry))
    sandbox.assert_exact()
    assert sandbox.quarantine() == Counter()
