"""A chain by the command: a queue into a topic, the topic into a topic, that into a table; each is killed once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.place import Place, account
from tests.fixtures.queues import Redis, started

from sluice.connections import variable_of
from sluice.local.kafka import Broker, Topics

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


@dataclass
class Link(Place):
    """A pipeline of the chain, with a home of its own."""

    keys: dict[str, Any]
    connections: dict[str, Any]

    def __post_init__(self) -> None:
        self.root.mkdir()
        super().__post_init__()

    def spec(self) -> dict[str, Any]:
        decode = {"json": {"schema": "id BIGINT, name STRING"}}
        return {"decode": decode, "quality": {"max_quarantined": "100%"}, **self.keys}

    def env(self) -> dict[str, str]:
        return {variable_of(name): json.dumps(found) for name, found in self.connections.items()}


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Any]:
    server = started(Redis, tmp_path / "server")
    yield server
    server.stop()


def test_a_queue_reaches_a_table_by_way_of_two_topics(
    queue: Any, broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}}
    connections = {"queue": queue.connection(), "kafka_default": kafka}
    reading = {"isolation_level": "read_committed"}
    source = {"connection": "queue", "kind": "redis_streams", "streams": ["orders"], "field": "value"}
    into = {"kafka": {"topic": "chain-raw", "key": "id", "partitions": 2}}
    first = Link(tmp_path / "a", "first", {"source": {"queue": source}, "sink": into}, connections)
    into = {"kafka": {"topic": "chain-clean", "key": "id", "partitions": 3}}
    where = {"transform": {"sql": "SELECT * FROM source WHERE id % 2 = 0"}, "rows": "filter"}
    raw = {"source": {"kafka": {"topics": ["chain-raw"], **reading}}, "sink": into, **where}
    second = Link(tmp_path / "b", "second", raw, connections)
    clean = {"source": {"kafka": {"topics": ["chain-clean"], **reading}}, "sink": {"delta": {"path": "out"}}}
    third = Link(tmp_path / "c", "third", clean, connections)
    messages = [b"no" if n % 5 == 0 else json.dumps({"id": n, "name": f"n{n}"}).encode() for n in range(20)]
    for number, half in enumerate((messages[:10], messages[10:])):
        queue.add("orders", half)
        for link, point in ((first, "records-sent"), (second, "records-sent"), (third, "sink-committed")):
            if number:
                link.killed("r1", point)
            account(link.run(f"r{number}"))
    ids = Counter(row["id"] for row in third.table("out", "id"))
    assert ids == Counter(n for n in range(20) if n % 5 and n % 2 == 0)
    for link in (first, second, third):
        link.audit()
    for topic in ("chain-raw", "chain-clean"):
        for name in (topic, f"{topic}.sluice-commits"):
            topics.delete(name)
