"""Sandboxes whose states can be put back: where rows come from, where they go, and how to look at both.

What is a folder is below ``SLUICE_HOME``, and so in the recording. A server's state is not: what changes a server is
only killed for real (:attr:`Box.on_server`), and :meth:`Box.rewind` puts the server back to what it was before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tests.fixtures.database import PostgresSandbox
from tests.fixtures.folder import FolderSandbox
from tests.fixtures.lake import IcebergSandbox
from tests.fixtures.outward import WriterSandbox
from tests.fixtures.runs import KeptSandbox, consume
from tests.fixtures.stream import StreamSandbox, origin

from sluice.local.servers import Postgres
from sluice_spark.sinks.iceberg import catalog

_CLOSING: list[Callable[[], object]] = []


@dataclass
class Box(KeptSandbox):
    """A topic of Kafka into a Delta table."""

    on_server = False
    """Whether a run changes a server, so that a recorded state is not the whole one."""
    deep = True
    """Whether the audit can compare rows."""
    at_least_once = False
    kept_rows = True
    """Whether the sink keeps rows that can be looked at."""
    unkept: tuple[str, ...] = ()
    """Columns that the sink does not keep."""
    moves = False
    """Whether what is due depends on how far a dead run came."""

    def grow(self) -> None:
        """Add what comes behind the records that were fed first."""
        self.feed(4)

    def serve(self) -> None:
        """Start the servers that it needs beside the broker; :func:`close` of the module ends them."""

    def remember(self) -> None:
        """Keep what the servers hold, for :meth:`rewind`."""

    def rewind(self, *, killed: bool) -> None:
        """Let the servers hold that again, before a state, or before a driver that is to be killed."""

    @property
    def outside(self) -> Path:
        """A folder beside the home, which no state has in it."""
        folder = self.home.parent.parent / "outside" / self.home.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def refusals(self) -> str:
        return "table_quarantine"

    def records(self) -> list[Any]:
        """What there is to read, by a client that shares no code with a run."""
        return consume(self.broker, self.topic)

    def token(self, key: bytes | None, value: bytes | None) -> Any:
        """Return what is compared of a refused record."""
        return key, value

    def rows_of_sink(self) -> list[dict[str, Any]]:
        table = self.rows("table")
        return [] if table is None else list(table.to_pylist())

    def refused(self) -> list[dict[str, Any]]:
        table = self.rows(self.refusals)
        return [] if table is None else list(table.to_pylist())

    def astray(self) -> list[str]:
        """What was staged, and no commit names."""
        places = ("table", self.refusals, f"logs/{self.name}")
        return [f"{path}/batches/{folder}" for path in places for folder in sorted(self.never_committed(path))]

    def versions(self) -> list[Any]:
        """What a commit to a table changes, for each table."""
        tables = [self.table(path) for path in ("table", self.refusals, f"logs/{self.name}")]
        return [-1 if table is None else table.version() for table in tables]


def closing(end: Callable[[], object]) -> None:
    """Do this when the boxes are no longer needed."""
    _CLOSING.append(end)


def close() -> None:
    """End the servers of all boxes."""
    while _CLOSING:
        _CLOSING.pop()()


def on_database(url: str, *statements: str, **values: Any) -> list[Any]:
    """Do something in a database, each statement by itself; return what the last one found."""
    engine, found = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool), list[Any]()
    with engine.connect() as connection:
        for statement in statements:
            result = connection.execute(sa.text(statement), values)
            found = list(result) if result.returns_rows else []
    return found


@dataclass
class _Outward(Box):
    """Into something else than Delta."""

    deep = False

    @property
    def refusals(self) -> str:
        return f"quarantine/{self.name}"

    def versions(self) -> list[Any]:
        return [*super().versions(), self.state_of_sink()]

    def state_of_sink(self) -> Any:
        return len(self.rows_of_sink())


@dataclass
class FolderBox(FolderSandbox, _Outward):
    """Into a folder of Parquet files, whose manifest says which count."""

    def rows_of_sink(self) -> list[dict[str, Any]]:
        return self.lines()

    def state_of_sink(self) -> Any:
        return sorted(file.name for file in self.out.glob("_sluice/*.json"))

    def astray(self) -> list[str]:
        return [*super().astray(), *sorted(self.strays())]


@dataclass
class IcebergBox(IcebergSandbox, _Outward):
    """Into Iceberg, whose catalog and warehouse are below the home."""

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.home}/catalog.db", "warehouse": f"file://{self.home}/lake"}

    def rewind(self, *, killed: bool) -> None:
        """Let this process open the catalog again: its file is another one of the same name."""
        catalog._opened.cache_clear()

    def rows_of_sink(self) -> list[dict[str, Any]]:
        return self.lines()

    def state_of_sink(self) -> Any:
        return [snapshot.snapshot_id for snapshot in self.orders.snapshots()]

    def astray(self) -> list[str]:
        named = {path.rpartition("/")[2] for path in self.orders.inspect.all_files().column("file_path").to_pylist()}
        there = {file.name for file in (self.home / "lake").rglob("batches/*/*.parquet")}
        return [*super().astray(), *sorted(there - named)]


@dataclass
class WriterBox(WriterSandbox, _Outward):
    """Into a writer that adds a line to a file for each row, below the home: at least once."""

    at_least_once = True
    unkept = ("name",)

    def rows_of_sink(self) -> list[dict[str, Any]]:
        file = self.collected / "rows.jsonl"
        found = []
        for line in file.read_bytes().split(b"\n")[:-1] if file.exists() else []:
            row = json.loads(line[line.rindex(b'{"batch"') :])  # behind a torn line, to which this one was added
            found.append({key: row[key] for key in ("id", "_topic", "_partition", "_offset")})
        return found

    def state_of_sink(self) -> Any:
        return sorted(path.name for path in (self.home / "staged" / "foreach").rglob("*") if path.is_file())


@dataclass
class ConsoleBox(_Outward):
    """Into the console: nothing stays to be looked at but the account."""

    kept_rows = False
    at_least_once = True

    def configure(self, **keys: Any) -> None:
        super().configure(**{"sink": {"console": {}}, **keys})

    def state_of_sink(self) -> Any:
        return None


@dataclass
class OnPostgres(Box):
    """With a database of its own, on a server of its own, whose data stays for later invocations."""

    database: str = ""
    """Its URL."""

    @property
    def server(self) -> Postgres:
        return Postgres(self.outside / "postgres")

    def serve(self) -> None:
        """Start it, and make the database."""
        self.server.start()
        closing(self.server.stop)
        name = re.sub(r"\W", "_", self.topic)
        known = self.server.connection()
        url = sa.URL.create("postgresql+psycopg2", known["login"], known["password"], known["host"], known["port"])
        self.database = url.set(database=name).render_as_string(hide_password=False)
        if not self.on_database_server(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            self.on_database_server(f'CREATE DATABASE "{name}"')

    @property
    def connection(self) -> str:
        return json.dumps(self.server.connection() | {"schema": sa.make_url(self.database).database})

    def on_database_server(self, *statements: str) -> list[Any]:
        """Do something beside the database; return what the last statement found."""
        url = sa.make_url(self.database).set(database="postgres")
        return on_database(url.render_as_string(hide_password=False), *statements)


@dataclass
class PostgresBox(OnPostgres, PostgresSandbox, _Outward):
    """Into a table of PostgreSQL, whose database is copied for each kill."""

    on_server = True

    def remember(self) -> None:
        self._copy(f"{self._name}_before", self._name)

    def rewind(self, *, killed: bool) -> None:
        self._copy(self._name, f"{self._name}_before")

    def rows_of_sink(self) -> list[dict[str, Any]]:
        return self.orders()

    def astray(self) -> list[str]:
        return [*super().astray(), *(str(file.relative_to(self.home)) for file in self.staged())]

    @property
    def _name(self) -> str:
        return str(sa.make_url(self.database).database)

    def _copy(self, to: str, of: str) -> None:
        self.on_database_server(
            f'DROP DATABASE IF EXISTS "{to}" WITH (FORCE)',
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{of}'",
            f'CREATE DATABASE "{to}" TEMPLATE "{of}"',
        )


@dataclass
class TopicBox(StreamSandbox, _Outward):
    """Into a topic of Kafka; a topic cannot be put back, so each kill gets another, which the run itself creates."""

    on_server = True
    tries: int = 0

    def configure(self, **keys: Any) -> None:
        self.target = self.target or f"{self.topic}-out-0"
        super().configure(**keys)

    def into(self, **keys: Any) -> dict[str, Any]:
        return super().into(partitions=2, **keys)

    def rewind(self, *, killed: bool) -> None:
        for name in (self.target, f"{self.target}.sluice-commits"):
            if self.topics.exists(name):
                self.topics.delete(name)
        self.tries += 1
        before, self.target = self.target, f"{self.topic}-out-{self.tries}"
        self.file.write_text(
            self.file.read_text().replace(before, self.target).replace(f"{self.topic}-out-0", self.target)
        )

    def rows_of_sink(self) -> list[dict[str, Any]]:
        names = ("_topic", "_partition", "_offset")
        return [json.loads(r.value) | dict(zip(names, origin(r), strict=True)) for r in self.sent()]

    def astray(self) -> list[str]:
        """Nothing: staged files stay until their run is judged, and then for a day."""
        return [*super().astray(), *(f"partition {p} is held up" for p in self.held_up())]
