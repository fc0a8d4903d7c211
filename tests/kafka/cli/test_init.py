"""``sluice init`` against a real broker: a draft that is valid, from records of a real topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.fixtures.registry import stand_in
from tests.fixtures.specs import run_cli

from sluice.local.kafka import Broker, Topics
from sluice.pipeline import load

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def place(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}}
    (tmp_path / "pipelines").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))


def test_init_drafts_a_valid_pipeline_from_records(
    topics: Topics, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = topic(2)
    old = [(n % 2, b"k%d" % n, b'{"id": %d, "at": "2026-01-01T00:00:00Z"}' % n) for n in range(20)]
    new = [(n % 2, b"k%d" % n, b'{"id": %d, "at": "2026-01-01T00:00:00Z", "tax": 1.5}' % n) for n in range(20, 40)]
    topics.produce(name, [*old, *new, (0, b"k", None), (1, b"k", b"{")])
    assert run_cli(monkeypatch, "init", name, "--records", "12", "--name", "orders", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == 12, "half the oldest, half the newest"
    assert found["columns"] == [
        {"name": "id", "type": "BIGINT"}, {"name": "at", "type": "TIMESTAMP"}, {"name": "tax", "type": "DOUBLE"},
    ]  # fmt: skip
    assert (found["key"], found["event_time"]) == ("id", "at")
    assert [Path(file).relative_to(tmp_path) for file in found["files"]] == [
        Path("pipelines/orders.yaml"), Path("expectations/orders.json"),
    ]  # fmt: skip
    spec = load("orders")
    assert spec.kafka.topics == [name]
    for refused in ((name, "--name", "orders"), (name, "--name", "Not A Name"), ("nosuch",)):
        assert run_cli(monkeypatch, "init", *refused) == 10
        assert refused[-1] in capsys.readouterr().err
    assert run_cli(monkeypatch, "init", name, "--records", "100", "--name", "all", "--print") == 0
    assert "1 of 42" in capsys.readouterr().out
    assert not (tmp_path / "pipelines" / "all.yaml").exists()


def test_init_drafts_columns_from_the_schema_registry(
    topics: Topics, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(1)
    topics.produce(name, [(0, b"k", b"\0\0\0\0\x07" + b"\x02" * 9)] * 3)
    assert run_cli(monkeypatch, "init", name, "--name", "plain", "--print") == 0
    assert "schema_registry_default" in capsys.readouterr().out
    assert run_cli(monkeypatch, "init", name, "--name", "orders", "--registry", "theirs") == 10
    assert "connection 'theirs'" in capsys.readouterr().err
    with stand_in() as registry:
        monkeypatch.setenv("AIRFLOW_CONN_THEIRS", registry.connection())
        registry.register(7, {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
        assert run_cli(monkeypatch, "init", name, "--name", "orders", "--registry", "theirs", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["columns"], found["key"]) == ([{"name": "id", "type": "BIGINT"}], "id")
        assert (spec := load("orders")).decode.key == "avro"
        assert spec.decode.config.registry == "theirs"
        file = FileDescriptorProto(name="f", package="p", syntax="proto3")
        file.message_type.add(name="Order").field.add(name="order_id", number=1, label=1, type=3)
        registry.register_protobuf(8, file.SerializeToString())
        other = topic(1)
        topics.produce(other, [(0, b"k", b"\0\0\0\0\x08\0\x08\x05")] * 3)
        assert run_cli(monkeypatch, "init", other, "--name", "proto", "--registry", "theirs", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["columns"], found["key"]) == ([{"name": "order_id", "type": "BIGINT"}], "order_id")
        assert (load("proto").decode.key, load("proto").decode.config.message) == ("protobuf", "p.Order")
        registry.failing = 503
        assert run_cli(monkeypatch, "init", name, "--name", "again", "--registry", "theirs") == 20
    assert "nothing was written" in capsys.readouterr().err
