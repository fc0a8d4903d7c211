"""Avro and Protobuf, end to end: a registry that is down costs time and no record; what it did not know is redriven."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.fixtures.registry import StandIn, stand_in
from tests.fixtures.runs import Sandbox

from sluice.local.topics import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "new", "type": "string"}]}
NOON = 1_772_366_400_000
FILE = FileDescriptorProto(name="r", syntax="proto3")
FILE.message_type.add(name="R").field.add(name="id", number=1, label=1, type=3)


@pytest.fixture
def registry() -> Iterator[StandIn]:
    with stand_in() as found:
        found.login = ("me", "hush")
        register(found, 1)
        yield found


def register(registry: StandIn, number: int, form: str = "avro") -> None:
    if form == "avro":
        registry.register(number, SCHEMA)
    else:
        registry.register_protobuf(number, FILE.SerializeToString())


def feed(sandbox: Sandbox, number: int, count: int, form: str = "avro") -> None:
    for _ in range(count):
        n, value = len(sandbox.produced), io.BytesIO()
        if form == "avro":
            fastavro.schemaless_writer(value, fastavro.parse_schema(SCHEMA), {"id": n, "new": "x"})
        else:  # the first message of its file; the field 1, a small number; and a field that no column has
            value.write(bytes([0, 0x08, n, 0x12, 1, 0x78]))
        sandbox.produce([Record(n % 2, b"k", struct.pack(">bI", 0, number) + value.getvalue(), NOON)])


def ids(sandbox: Sandbox) -> Counter[int]:
    found = sandbox.rows()
    return Counter() if found is None else Counter(found.column("id").to_pylist())


@pytest.mark.parametrize(
    ("recovery", "engine", "form"),
    [
        ("replay", "auto", "avro"),
        pytest.param("replay", "spark", "avro", marks=pytest.mark.long),
        pytest.param("wal", "auto", "avro", marks=pytest.mark.long),
        pytest.param("hot", "auto", "avro", marks=pytest.mark.long),
        pytest.param("ignore_range", "auto", "avro", marks=pytest.mark.long),
        pytest.param("ignore_batch", "spark", "avro", marks=pytest.mark.long),
        pytest.param("replay", "auto", "protobuf", marks=pytest.mark.long),
        pytest.param("wal", "spark", "protobuf", marks=pytest.mark.long),
        pytest.param("hot", "auto", "protobuf", marks=pytest.mark.long),
        pytest.param("ignore_range", "auto", "protobuf", marks=pytest.mark.long),
    ],
)
def test_what_the_registry_did_not_know_is_refused_and_redriven(
    sandbox: Sandbox, registry: StandIn, recovery: str, engine: str, form: str
) -> None:
    register(registry, 1, form)
    env: dict[str, Any] = {"AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT": registry.connection(login="me", password="hush")}
    sandbox.configure(
        decode={form: {"schema": "id BIGINT NOT NULL"}},
        quality={"max_quarantined": "100%"},
        recovery=recovery,
        engine=engine,
    )
    feed(sandbox, 1, 8, form)
    feed(sandbox, 2, 2, form)
    sandbox.run("killed", kill_at="sink-committed", **env)
    registry.failing = 503
    down = sandbox.run("down", expect=20, **env)
    assert "schema registry" in down.message
    assert "hush" not in down.stderr
    registry.failing = None
    sandbox.run("after", **env)
    sandbox.assert_exact()
    assert ids(sandbox) == Counter(range(8))
    shown = sandbox.cli("quarantine", str(sandbox.file), "--show", "1", **env)
    assert "schema_id" in shown.stdout
    assert "it was written with schema 2" in shown.stdout
    register(registry, 2, form)
    sandbox.run("redriven", redriven="quarantined", **env)
    assert ids(sandbox) == Counter(range(10))
    assert sandbox.quarantine() == Counter()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["ignore_range", "ignore_batch", "wal"])
def test_a_schema_that_the_registry_cannot_give_loses_nothing(
    sandbox: Sandbox, registry: StandIn, recovery: str
) -> None:
    """It answers, and takes the login, before the run and after it failed."""
    env: dict[str, Any] = {"AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT": registry.connection(login="me", password="hush")}
    sandbox.configure(decode={"avro": {"schema": "id BIGINT NOT NULL"}}, recovery=recovery)
    registry.register(2, SCHEMA)
    registry.broken = {2}
    feed(sandbox, 1, 4)
    feed(sandbox, 2, 4)
    ended = sandbox.run("first", expect=20, **env)
    assert "it answers 500" in ended.message
    registry.broken = set()
    past = ("2026-01-01T00:00:00Z", "2026-06-01T00:00:00Z")
    sandbox.run("second", **env)
    registry.broken = {2}
    sandbox.run("again", interval=past, expect=20, **env)
    registry.broken = set()
    sandbox.assert_exact()
    assert ids(sandbox) == Counter(range(8))
    assert sandbox.total("lost") == 0


@pytest.mark.long
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_registry_that_dies_while_a_batch_is_read_refuses_nothing(
    sandbox: Sandbox, registry: StandIn, engine: str
) -> None:
    env = {"AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT": registry.connection(login="me", password="hush")}
    sandbox.configure(decode={"avro": {"schema": "id BIGINT NOT NULL"}}, engine=engine)
    feed(sandbox, 1, 8)
    registry.last_answers = 1  # to the driver, before the run
    ended = sandbox.run("first", expect=20, **env)
    assert "schema registry" in ended.message
    assert sandbox.sink() + sandbox.quarantine() == Counter()
    registry.last_answers = None
    sandbox.run("second", **env)
    sandbox.assert_exact()
    assert sandbox.quarantine() == Counter()
