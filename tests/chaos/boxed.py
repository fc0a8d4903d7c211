"""A sandbox for each source and each sink by its name: those of the recorded states, and their independent oracle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.chaos.states.boxes import Box, ConsoleBox, FolderBox, IcebergBox, PostgresBox, TopicBox, WriterBox, close
from tests.chaos.states.catalog import SCENARIOS
from tests.chaos.states.oracle import Oracle
from tests.chaos.states.origins import FileBox, Read, RedisBox
from tests.chaos.states.scenarios import Scenario
from tests.fixtures.queues import OwnQueue
from tests.fixtures.runs import Outcome, Sandbox, consume

from sluice.shipped import CHECKOUT

__all__ = ["BOXES", "KINDS", "TOY", "Box", "ToyBox", "UntracedTopicBox", "exact", "made"]

TOY = CHECKOUT / "tests" / "fixtures" / "toy"
"""The path of a package outside of the project's own."""


@dataclass
class ToyBox(FileBox, ConsoleBox):
    """A source, a decoder and a sink of another package: lines of two files into a folder of JSON lines.

    Each run has a process of its own: Spark's workers import classes on their driver's path.
    """

    at_least_once = False
    kept_rows = True

    def source(self) -> dict[str, Any]:
        (self.outside / "lines").mkdir(exist_ok=True)
        return {"lines": {"path": str(self.outside / "lines")}}

    def configure(self, **keys: Any) -> None:
        toys = {"decode": {"pairs": {"fields": ["id", "name"]}}, "sink": {"jsonl": {"path": "out"}}}
        super().configure(**{**toys, **keys})

    def env(self, **extra: str) -> dict[str, str]:
        env = super().env(**extra)
        return env | {"PYTHONPATH": os.pathsep.join([str(TOY), env["PYTHONPATH"]])}

    def run(self, run: str, **options: Any) -> Outcome:
        return Sandbox.run(self, run, **options)

    def add(self, values: list[bytes]) -> None:
        for number, value in enumerate(values):
            pair = "id={id};name={name}".format(**json.loads(value)) if value.endswith(b"}") else "nothing"
            with (self.outside / "lines" / str(number % 2)).open("a") as out:
                out.write(pair + "\n")

    def records(self) -> list[Any]:
        found = []
        for file in (self.outside / "lines").iterdir():
            for n, line in enumerate(file.read_text().splitlines()):
                pair = dict(part.split("=") for part in line.split(";")) if "=" in line else None
                found.append(Read("lines", int(file.name), n, None, json.dumps(pair).encode() if pair else b"nothing"))
        return found

    def rows_of_sink(self) -> list[dict[str, Any]]:
        out = self.home / "out"
        commits = [json.loads(file.read_text()) for file in sorted((out / "_commits").glob("*.json"))]
        files = [out / file for commit in commits for file in commit["files"]]
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [row | {"id": int(row["id"])} for row in rows]


@dataclass
class UntracedTopicBox(TopicBox):
    """Into a topic whose records come from no single record, such as windows."""

    def rows_of_sink(self) -> list[dict[str, Any]]:
        return [json.loads(r.value) | {"_run": dict(r.headers)["_run"].decode()} for r in self.sent()]


@dataclass
class OwnQueueBox(RedisBox):
    """A queue of a class of the user's own; each run has a process of its own."""

    program: Any = OwnQueue

    def source(self) -> dict[str, Any]:
        return {"queue": {"connection": "queue", "kind": OwnQueue.kind, "streams": ["orders"]}}

    def run(self, run: str, **options: Any) -> Outcome:
        return Sandbox.run(self, run, **options)

    def records(self) -> list[Any]:
        return consume(self.queue._broker, "orders")


BOXES: Mapping[str, type[Box]] = {
    "delta": Box, "iceberg": IcebergBox, "files": FolderBox, "postgres": PostgresBox, "kafka": TopicBox,
    "foreach": WriterBox,
}  # fmt: skip
"""By the names of sinks."""

_SINKS = ("iceberg", "files", "postgres", "kafka", "foreach", "console")
_SOURCES = ("file-json", "file-parquet", "file-avro", "jdbc", "jdbc-time", "redis", "nats", "pattern", "clusters",
            "rate", "socket")  # fmt: skip
KINDS: Mapping[str, Scenario] = {
    **{name: SCENARIOS[name] for name in (*_SINKS, *_SOURCES)},
    "delta": replace(SCENARIOS["files"], name="delta", box=Box),
    "toy": replace(SCENARIOS["file-json"], name="toy", box=ToyBox),
    "queue": replace(SCENARIOS["redis"], name="queue", box=OwnQueueBox),
}
"""Scenarios by the names of sinks and sources."""


def made(kind: type[Box], request: pytest.FixtureRequest) -> Box:
    """Return a new sandbox with its servers, which end with the test."""
    broker, topics, topic, tmp_path = map(request.getfixturevalue, ("broker", "topics", "topic", "tmp_path"))
    home, spark = tmp_path / "box" / "home", request.getfixturevalue("spark")
    request.addfinalizer(close)
    box = kind(home, broker, topics, topic(2, retention_ms=-1), spark=spark)
    box.serve()
    return box


def exact(box: Box, oracle: Oracle | None = None) -> None:
    """Check that each record is in one place, once, as it is; that the books agree, and nothing is left over."""
    assert (oracle or Oracle(box)).look(live=True).problems == []
