"""Every kind of source, opened without Spark: how a test adds records to its place, and takes the place away."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from tests.fixtures.lines import Server
from tests.fixtures.postgres import new_database
from tests.fixtures.queues import Nats, Redis, started
from tests.fixtures.runs import await_that

from sluice.connections import variable_of
from sluice.home import Home
from sluice.kinds import kind_of
from sluice.local.kafka import Topics
from sluice.sources.base import Source, SourceConfig, SourceKind

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "hunter2"
TOY = Path(__file__).parents[1] / "fixtures" / "toy"


def passed(moment: datetime) -> None:
    """Return when it is later."""
    await_that(lambda: datetime.now(UTC) > moment, "the clock goes on")


class SourceCase(ABC):
    """A kind of source in a place of its own, which has no records."""

    name: ClassVar[str]
    key: ClassVar[str]
    """Its key below ``source`` of a pipeline file."""
    shrinks: ClassVar[bool] = False
    """Whether a test can let the place remove records by itself."""
    recreates: ClassVar[bool] = False
    rewinds: ClassVar[bool] = False
    """Whether a stream can be deleted, and made again under its name."""
    announces: ClassVar[bool] = False
    """Whether a snapshot may take long, and says early that there are records."""
    guarded: ClassVar[bool] = False
    """Whether the place asks who reads."""
    reachable: ClassVar[bool] = False
    """Whether there is a place that can be out of reach."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
        self.root, self.monkeypatch, self.request = root, monkeypatch, request
        self.added = 0
        self.place()

    @property
    def kind(self) -> SourceKind:
        found: SourceKind = kind_of("sources", self.key)
        return found

    @property
    def config(self) -> SourceConfig:
        return self.kind.config.model_validate(self.keys())

    def opened(self) -> Source:
        return self.kind.opened(self.config, Home(str(self.root / "home")), "p")

    def moment(self) -> datetime:
        """Return a time after that of each record so far, and not after that of the next one."""
        return T0 + self.added * timedelta(hours=1)

    def connect(self, conn_id: str, connection: dict[str, Any]) -> None:
        self.monkeypatch.setenv(variable_of(conn_id), json.dumps(connection))

    @abstractmethod
    def place(self) -> None:
        """Make the place."""

    @abstractmethod
    def keys(self) -> dict[str, Any]:
        """Return the keys of the pipeline file."""

    @abstractmethod
    def put(self, number: int) -> None:
        """Add the record of a number."""

    def add(self, count: int) -> None:
        """Add records to the first partition of the first stream."""
        for number in range(self.added, self.added + count):
            self.put(number)
            self.added += 1

    def shrink(self, keep: int) -> None:
        """Let the place keep only its last records."""
        raise NotImplementedError

    def recreate(self) -> None:
        """Delete the stream, and make it again."""
        raise NotImplementedError

    def rewind(self) -> Callable[[], None]:
        """Copy the place; return a function that puts the copy back."""
        raise NotImplementedError

    def shut(self) -> None:
        """Take the place out of reach."""
        raise NotImplementedError

    def stranger(self) -> None:
        """Connect with a wrong secret, or without the right to read."""
        raise NotImplementedError


class FileCase(SourceCase):
    name, key, announces, reachable = "file", "file", True, True

    def place(self) -> None:
        self.folder = self.root / "inbox"
        self.folder.mkdir()

    def keys(self) -> dict[str, Any]:
        return {"path": str(self.folder), "format": "json"}

    def put(self, number: int) -> None:
        file = self.folder / f"{number:03}.json"
        file.write_text("{}\n")
        os.utime(file, (self.moment().timestamp(),) * 2)

    def shut(self) -> None:
        self.folder.rename(self.root / "elsewhere")


class ToyCase(SourceCase):
    """A package outside of the project, registered by an entry point."""

    name, key, reachable = "lines", "lines", True

    def place(self) -> None:
        self.monkeypatch.syspath_prepend(str(TOY))
        kind_of.cache_clear()
        self.request.addfinalizer(kind_of.cache_clear)
        self.folder = self.root / "toy"
        self.folder.mkdir()
        (self.folder / "0").touch()

    def keys(self) -> dict[str, Any]:
        return {"path": str(self.folder)}

    def put(self, number: int) -> None:
        with (self.folder / "0").open("a") as file:
            file.write(f"{number}\n")

    def shut(self) -> None:
        self.folder.rename(self.root / "elsewhere")


class JdbcCase(SourceCase):
    """A table of PostgreSQL, in the order of a time."""

    name, key, announces, reachable, guarded = "jdbc", "jdbc", True, True, True

    def place(self) -> None:
        self.monkeypatch.setattr("sluice.sources.jdbc.source._PATIENCE", 0.2)
        self.url = sa.make_url(new_database(self.request.getfixturevalue("postgres")))
        self.engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        self.request.addfinalizer(self.engine.dispose)
        self.sql("CREATE TABLE orders (n INT PRIMARY KEY, at TIMESTAMPTZ UNIQUE)")
        self.reach()

    def reach(self, **parts: Any) -> None:
        own = {"host": self.url.host, "port": self.url.port, "login": self.url.username, "schema": self.url.database}
        self.connect("postgres_default", {"conn_type": "postgres", **own, **parts})

    def sql(self, statement: str) -> None:
        with self.engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def keys(self) -> dict[str, Any]:
        return {"table": "orders", "key": "at"}

    def put(self, number: int) -> None:
        self.sql(f"INSERT INTO orders VALUES ({number}, '{self.moment().isoformat()}')")

    def shut(self) -> None:
        self.reach(port=1, password=SECRET)

    def stranger(self) -> None:
        self.sql("CREATE ROLE stranger LOGIN")
        self.request.addfinalizer(lambda: self.sql("DROP ROLE stranger"))
        self.reach(login="stranger", password=SECRET)


class _QueueCase(SourceCase):
    key, shrinks, recreates, guarded, reachable = "queue", True, True, True, True
    rewinds = True
    program: ClassVar[Any]

    def place(self) -> None:
        self.server = started(self.program, self.root / "server")
        self.request.addfinalizer(self.server.stop)
        self.connect("queue", self.server.connection())
        self.server.add("s", [b"first"])
        self.server.trim("s", 0)

    def keys(self) -> dict[str, Any]:
        return {"connection": "queue", "kind": self.server.kind, "streams": ["s"]}

    def moment(self) -> datetime:
        """Let the clock of the server, in milliseconds, go on."""
        now = datetime.now(UTC) + timedelta(milliseconds=2)
        passed(now)
        return now

    def put(self, number: int) -> None:
        self.server.add("s", [b"%d" % number])

    def shrink(self, keep: int) -> None:
        self.server.trim("s", keep)

    def recreate(self) -> None:
        self.server.remove("s")
        self.server.add("s", [b"another"])

    def rewind(self) -> Callable[[], None]:
        saved = self.root / "saved"
        self.server.stop()
        shutil.copytree(self.server.folder, saved)
        self.server.start()

        def back() -> None:
            self.server.stop()
            shutil.rmtree(self.server.folder)
            shutil.copytree(saved, self.server.folder)
            self.server.start()

        return back

    def shut(self) -> None:
        self.server.stop()

    def stranger(self) -> None:
        self.connect("queue", {**self.server.connection(), "password": SECRET})


class RedisCase(_QueueCase):
    name, program = "redis_streams", Redis


class NatsCase(_QueueCase):
    name, program = "nats_jetstream", Nats


class RateCase(SourceCase):
    """Made-up rows, which come by themselves."""

    name, key = "rate", "rate"

    def place(self) -> None:
        self.begun = datetime.now(UTC)

    def keys(self) -> dict[str, Any]:
        return {"rows_per_second": 100}

    def moment(self) -> datetime:
        return self.begun + timedelta(seconds=self.added / 100)

    def put(self, number: int) -> None:
        passed(datetime.now(UTC) + timedelta(seconds=0.01))


class SocketCase(SourceCase):
    name, key, announces, reachable = "socket", "socket", True, True

    def place(self) -> None:
        self.lines: list[bytes] = []
        self.server = Server(self.sent())

    def sent(self) -> Iterator[bytes]:
        while True:
            lines, self.lines = self.lines, []
            yield b"".join(lines)

    def keys(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.server.port, "listen": "20s"}

    def put(self, number: int) -> None:
        self.lines.append(b"%d\n" % number)

    def shut(self) -> None:
        self.server.stop()


class KafkaCase(SourceCase):
    name, key, shrinks, recreates, reachable = "kafka", "kafka", True, True, True

    def place(self) -> None:
        self.topics: Topics = self.request.getfixturevalue("topics")
        self.topic: str = self.request.getfixturevalue("topic")(1, retention_ms=-1)
        bootstrap = self.request.getfixturevalue("broker").bootstrap
        self.connect("kafka_default", {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}})

    def keys(self) -> dict[str, Any]:
        return {"topics": [self.topic]}

    def put(self, number: int) -> None:
        self.topics.produce(self.topic, [(0, None, b"v", int(self.moment().timestamp() * 1000))])

    def shrink(self, keep: int) -> None:
        (end,) = self.topics.ends(self.topic).values()
        self.topics.delete_records(self.topic, {0: end - keep})

    def recreate(self) -> None:
        self.topics.recreate(self.topic, 1)

    def shut(self) -> None:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
        extra = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": SECRET, **login}
        self.connect("kafka_default", {"conn_type": "kafka", "extra": extra})


CASES: list[type[SourceCase]] = [FileCase, JdbcCase, RedisCase, NatsCase, RateCase, SocketCase, KafkaCase, ToyCase]
