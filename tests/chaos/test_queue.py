"""Message queues as a source: each message lands once, whatever is killed, and what the queue no longer has is told."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.inside import MODULES
from tests.fixtures.place import KeptPlace, Offset, account, error
from tests.fixtures.queues import Nats, OwnQueue, QueueServer, Redis, started

from sluice.connections import variable_of

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


@dataclass
class Streams(KeptPlace):
    """A pipeline that reads two streams of a queue."""

    server: Any
    messages: dict[str, list[bytes]] = field(default_factory=lambda: {"orders": [], "refunds": []})

    def source(self, **keys: Any) -> dict[str, Any]:
        own: dict[str, Any] = {
            "connection": "queue", "kind": self.server.kind, "streams": list(self.messages), "max_records_per_batch": 9,
        }  # fmt: skip
        if self.server.kind == "redis_streams":
            own["field"] = "value"
        return {"queue": own | keys}

    def spec(self) -> dict[str, Any]:
        return {
            "source": self.source(), "decode": {"json": {"schema": "id BIGINT"}},
            "sink": {"delta": {"path": "out"}}, "quality": {"max_quarantined": "100%"},
        }  # fmt: skip

    def env(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(MODULES), os.environ.get("PYTHONPATH", "")]))
        return {variable_of("queue"): json.dumps(self.server.connection()), "PYTHONPATH": path}

    def feed(self, count: int) -> None:
        """Add messages to both streams; each fifth is bad."""
        for stream, known in self.messages.items():
            new = [
                b"no" if n % 5 == 0 else json.dumps({"id": n}).encode() for n in range(len(known), len(known) + count)
            ]
            self.server.add(stream, new)
            known += new

    def expected(self, *, good: bool) -> Counter[Offset]:
        return Counter(
            (stream, 0, n)
            for stream, known in self.messages.items()
            for n, own in enumerate(known)
            if (own != b"no") is good
        )

    def assert_exact(self) -> None:
        assert self.offsets("out") == self.expected(good=True)
        assert self.offsets("out_quarantine") == self.expected(good=False)
        assert all(row["id"] == row["_offset"] for row in self.table("out", "id", "_offset"))
        self.audit()


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueServer]:
    server = started(request.param, tmp_path / "server")
    yield server
    server.stop()


@pytest.fixture
def place(server: QueueServer, spark: SparkSession, tmp_path: Path) -> Streams:
    place = Streams(tmp_path, "shop", server)
    if not isinstance(server, OwnQueue):  # its class is imported by workers, whose path is that of their driver
        place.spark = spark
    place.feed(6)
    return place


def servers(*fast: type) -> pytest.MarkDecorator:
    """Run a test with each server: with these always, with the others only among the long ones."""
    marks = {kind: () if kind in fast else (pytest.mark.long,) for kind in (Redis, Nats, OwnQueue)}
    params = [pytest.param(kind, marks=own, id=kind.kind) for kind, own in marks.items()]
    return pytest.mark.parametrize("server", params, indirect=True)


POINTS = {
    "replay": ("rows-staged", "sink-committed"),
    "wal": ("segments-staged", "sealed", "batch-recorded"),
    "hot": ("rows-staged", "batch-recorded"),
    "ignore_range": ("quarantine-staged", "quarantine-committed"),
}
FAST = {(Redis, "replay", "auto")}


@pytest.mark.parametrize(
    ("server", "strategy", "engine"),
    [
        pytest.param(
            kind,
            strategy,
            engine,
            marks=() if (kind, strategy, engine) in FAST else pytest.mark.long,
            id=f"{kind.kind}-{strategy}-{engine}",
        )
        for kind in (Redis, Nats, OwnQueue)
        for strategy in POINTS
        for engine in ("auto", "spark")
    ],
    indirect=["server"],
)
def test_each_message_lands_once_when_drivers_are_killed(place: Streams, strategy: str, engine: str) -> None:
    place.configure(recovery=strategy, engine=engine)
    for number, point in enumerate(POINTS[strategy]):
        place.killed(f"killed {number}", point)
        place.feed(7)
    done = account(place.run("last"))
    assert done["lost"] == done["absent"] == 0
    place.assert_exact()
    assert account(place.run("nothing new"))["planned"] == 0


@servers(Redis)
def test_messages_that_the_queue_removed_are_told_and_given_up(place: Streams) -> None:
    account(place.run("first"))
    place.feed(10)
    place.server.trim("orders", 4)
    told = error(place.run("gone"), 21)
    assert "6 planned offsets are gone" in told, told
    done = account(place.run("given up", "--recovery", "ignore_range"))
    assert (done["lost"], done["planned"]) == (6, 20)
    gone = Counter(("orders", 0, n) for n in range(6, 12))
    assert place.offsets("out") == place.expected(good=True) - gone
    place.audit()


@servers(Nats)
def test_a_stream_that_was_made_anew_is_refused(place: Streams) -> None:
    account(place.run("first"))
    place.server.remove("orders")
    place.server.add("orders", [b'{"id": 1}'] * 20)
    assert "deleted and recreated" in error(place.run("anew"), 22)


@servers(Redis)
def test_a_server_that_is_down_is_named_without_its_password(place: Streams) -> None:
    place.server.stop()
    told = error(place.run("down"), 20)
    assert "does not answer" in told
    assert "secret" not in told
    place.server.start()
    assert account(place.run("up"))["planned"] == 12
    place.assert_exact()


@servers()
def test_an_interval_is_found_by_the_messages_times(place: Streams) -> None:
    account(place.run("first"))
    redone = account(place.run("again", "--start", "2020-01-01", "--end", datetime.now(UTC).isoformat()))
    assert redone["written"] == sum(place.expected(good=True).values())
    place.assert_exact()
