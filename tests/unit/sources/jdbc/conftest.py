"""A shop: a database of PostgreSQL, and a pipeline's source that reads a table of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from tests.fixtures.postgres import Server, binaries, new_database, server

from sluice.connections import variable_of
from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.sources.jdbc import source as module
from sluice.sources.jdbc.config import JdbcSource
from sluice.sources.jdbc.source import TableRows

TABLE = "CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT)"


@dataclass
class Shop:
    """A database, and a pipeline's source that reads it."""

    root: Path
    url: str
    keys: dict[str, Any] = field(default_factory=lambda: {"table": "orders", "key": "id"})

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        self.connect()
        self.sql(TABLE)

    def connect(self, **parts: Any) -> None:
        url = sa.make_url(self.url)
        own = {"host": url.host, "port": url.port, "login": url.username, "schema": url.database}
        os.environ[variable_of("postgres_default")] = json.dumps({"conn_type": "postgres", **own, **parts})

    def sql(self, *statements: str) -> Any:
        """Execute statements; return the rows of the last one."""
        with self.engine.connect() as connection:
            for statement in statements:
                found = connection.exec_driver_sql(statement)
            return [tuple(row) for row in found] if found.returns_rows else None

    def table(self, columns: str, **keys: Any) -> None:
        """Make the table with other columns, and read it by other keys."""
        self.sql("DROP TABLE orders", f"CREATE TABLE orders ({columns})")
        self.keys |= keys

    def add(self, count: int) -> None:
        self.sql(f"INSERT INTO orders (name) SELECT 'x' FROM generate_series(1, {count})")

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Another client's transaction, which is committed at the block's end."""
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            yield connection.exec_driver_sql
        engine.dispose()

    def source(self) -> TableRows:
        return TableRows(JdbcSource.model_validate(self.keys), Home(str(self.root)), "shop")

    def look(self, times: int = 1) -> TableRows:
        """Land rows, as a run does; offsets have no gap."""
        for _ in range(times):
            with self.source() as source:
                (state,) = source.snapshot()
                at = source.intake.start
                for part in source.intake.parts:
                    table = pq.read_table(source.intake.rows / part.name)
                    assert table.column("offset").to_pylist() == list(range(at, at + part.rows))
                    at += part.rows
                assert state.partitions[0].end == at == source.intake.position.end
        return source

    @property
    def floor(self) -> Any:
        """The key below which no row comes any more."""
        return self.source().intake.position.floor

    def notes(self) -> str:
        """Look; return the notes for the account of the run."""
        return " ".join(self.look().notes)

    def records(self) -> list[dict[str, Any]]:
        """The landed rows, in the order of offsets."""
        intake = self.source().intake
        return [row for part in intake.parts for row in pq.read_table(intake.rows / part.name).to_pylist()]

    def values(self) -> list[dict[str, Any]]:
        return [json.loads(row["value"]) for row in self.records()]

    def exact(self, columns: str = "id", looks: int = 1) -> None:
        """Look; check that each row of the table was landed once."""
        self.look(looks)
        expected = Counter(json.dumps(row[0]) for row in self.sql(f"SELECT json_build_array({columns}) FROM orders"))
        names = columns.split(", ")
        assert Counter(json.dumps([v[n] for n in names]) for v in self.values()) == expected

    def refused(self, named: str, kind: type[SluiceError] = ConfigError) -> None:
        """Look; check that it is refused, and lands nothing."""
        before = self.source().intake.position.end
        with pytest.raises(kind, match=named) as caught:
            self.look()
        assert (bool(caught.value.next_step), bool(caught.value.state)) == (True, True)
        assert self.source().intake.position.end == before


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No source waits long for transactions that are about to end."""
    monkeypatch.setenv(variable_of("postgres_default"), "{}")
    monkeypatch.setattr(module, "_PATIENCE", 0.2)


@pytest.fixture
def shop(postgres: str, tmp_path: Path, quick: None) -> Iterator[Shop]:
    """A shop in a database of the session's server."""
    shop = Shop(tmp_path, new_database(postgres))
    yield shop
    shop.engine.dispose()


@pytest.fixture
def own_server(quick: None) -> Iterator[Server]:
    """A server that a test may end."""
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server binaries here: apt-get install postgresql")
    with server(programs) as running:
        yield running
