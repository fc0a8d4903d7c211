"""A registry of schemas that is down, or does not know one of them: no record is refused or lost for that."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.chaos.cases import WAYS
from tests.chaos.commands import ALL_BAD, listed
from tests.fixtures.registry import StandIn, stand_in
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
EVERY_WAY = [*WAYS, ("wal", "spark"), ("ignore_batch", "auto"), ("ignore_range", "spark")]
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


def configure(sandbox: Sandbox, form: str, **keys: Any) -> None:
    sandbox.configure(decode={form: {"schema": "id BIGINT NOT NULL"}}, **ALL_BAD, **keys)


def register(registry: StandIn, number: int, form: str) -> None:
    if form == "avro":
        registry.register(number, SCHEMA)
    else:
        registry.register_protobuf(number, FILE.SerializeToString())


def feed(sandbox: Sandbox, number: int, count: int, form: str) -> None:
    for _ in range(count):
        n, value = len(sandbox.produced), io.BytesIO()
        if form == "avro":
            fastavro.schemaless_writer(value, fastavro.parse_schema(SCHEMA), {"id": n, "new": "x"})
        else:  # the first message of its file; the field 1, a small number; and a field that no column has
            value.write(bytes([0, 0x08, n, 0x12, 1, 0x78]))
        sandbox.produce([(n % 2, b"k", struct.pack(">bI", 0, number) + value.getvalue(), NOON)])


def ids(sandbox: Sandbox) -> list[int]:
    return sorted(row["id"] for row in listed(sandbox))


@pytest.mark.parametrize("form", ["avro", "protobuf"])
@pytest.mark.parametrize(("recovery", "engine"), EVERY_WAY)
def test_registry_that_is_down_costs_no_record_and_an_unknown_schema_is_refused_and_redriven(
    sandbox: Sandbox, registry: StandIn, form: str, recovery: str, engine: str
) -> None:
    register(registry, 1, form)
    env = access(registry)
    configure(sandbox, form, recovery=recovery, engine=engine)
    feed(sandbox, 1, 8, form)
    feed(sandbox, 2, 2, form)
    sandbox.run("killed", kill_at="sink-committed", **env)
    registry.failing = 503
    assert "hush" not in sandbox.run("down", expect=20, **env).stderr
    registry.failing = None
    sandbox.run("after", **env)
    sandbox.assert_exact()
    assert ids(sandbox) == list(range(8))
    assert "schema_id" in sandbox.cli("quarantine", str(sandbox.file), "--show", "1", **env).stdout
    register(registry, 2, form)
    sandbox.run("redriven", redriven="quarantined", **env)
    assert ids(sandbox) == list(range(10))
    assert not sandbox.quarantine()


@pytest.mark.parametrize("recovery", ["ignore_range", "ignore_batch", "wal"])
def test_registry_that_cannot_give_one_schema_loses_no_record(
    sandbox: Sandbox, registry: StandIn, recovery: str
) -> None:
    """It answers, and takes the login, before the run and after it failed."""
    configure(sandbox, "avro", recovery=recovery)
    for number in (1, 2):
        register(registry, number, "avro")
        feed(sandbox, number, 4, "avro")
    for run, options in {"live": {}, "interval": {"interval": ("2026-03-01", "2026-03-02")}}.items():
        registry.broken = {2}
        sandbox.run(run, expect=20, **options, **access(registry))
        registry.broken = set()
        if run == "live":
            sandbox.run("again", **access(registry))
    sandbox.assert_exact()
    assert ids(sandbox) == list(range(8))
    assert sandbox.total("lost") == 0
