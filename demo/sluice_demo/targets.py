"""Where the feeder puts flights beside a topic: files of a folder, a table of PostgreSQL, a stream of Redis, a socket.

One more kind is one more class: what it holds already, and how to add to it. Its records have the column ``id``, the
number of a flight among all flights by scheduled departure, by which a repeated feed adds nothing twice; only a socket
forgets what it was given.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sluice.connections import Connection, find
from sluice.errors import ConfigError
from sluice.postgres import name_of, url_of
from sluice_demo.fed import Fed, Range

__all__ = ["Files", "Flight", "Socket", "Stream", "Table", "Target", "target_of"]

_PAGE = 10_000


class Flight(NamedTuple):
    """A flight to feed: its number, its time in milliseconds since 1970, and its JSON object with the number in it."""

    number: int
    at: int
    value: bytes


class Target(Protocol):
    """What can be fed. One feeder at a time is at work."""

    def held(self) -> list[Range]:
        """Return the numbers of the flights that it holds, as ranges, both ends inclusive."""

    def add(self, flights: Sequence[Flight]) -> None:
        """Add flights of ascending, adjacent numbers, all or none of them."""


class Files:
    """JSON files of a folder; each has the numbers of its flights in its name."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def held(self) -> list[Range]:
        """Return the ranges that the names of files say."""
        return [
            (int(parts[1]), int(parts[2]))
            for file in self.folder.glob("flights-*-*.json")
            if len(parts := file.stem.split("-")) == 3
        ]

    def add(self, flights: Sequence[Flight]) -> None:
        """Write a file: under a name that no reader takes, and then rename it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"flights-{flights[0].number:06}-{flights[-1].number:06}.json"
        hidden = self.folder / f".{name}"
        hidden.write_bytes(b"".join(flight.value + b"\n" for flight in flights))
        os.replace(hidden, self.folder / name)


class Table:
    """A table of PostgreSQL with the primary key ``id``; made if it is not there."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._table = name_of(*name.split("."))
        self._url = url_of(connection).replace("postgresql://", "postgresql+psycopg2://", 1)

    def held(self) -> list[Range]:
        """Return the ranges of ids that the table has."""
        columns = (
            "id bigint PRIMARY KEY, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, "
            "arr_time int, sched_arr_time int, arr_delay int, carrier text, flight int, tailnum text, origin text, "
            "dest text, air_time int, distance int, hour int, minute int, time_hour timestamptz"
        )
        self._do(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})", {})
        grouped = f"SELECT id, id - row_number() OVER (ORDER BY id) AS island FROM {self._table}"
        found = self._do(f"SELECT min(id), max(id) FROM ({grouped}) AS ids GROUP BY island", {})
        return [(int(first), int(last)) for first, last in found]

    def add(self, flights: Sequence[Flight]) -> None:
        """Insert flights in one transaction."""
        rows = f"json_populate_recordset(NULL::{self._table}, CAST(:rows AS json))"
        text = (b"[" + b",".join(flight.value for flight in flights) + b"]").decode()
        self._do(f"INSERT INTO {self._table} SELECT * FROM {rows} ON CONFLICT DO NOTHING", {"rows": text})

    def _do(self, statement: str, values: dict[str, Any]) -> list[Any]:
        import sqlalchemy as sa

        engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            found = connection.execute(sa.text(statement), values)
            return list(found) if found.returns_rows else []


class Stream:
    """A stream of Redis. An entry has the fields ``value`` and ``number``; its id is the flight's time and number."""

    def __init__(self, name: str, connection: Connection) -> None:
        import redis

        self._name = name
        self._redis: Any = redis.Redis(
            host=connection.host or "localhost",
            port=connection.port or 6379,
            username=connection.login,
            password=connection.password,
        )

    def held(self) -> list[Range]:
        """Return the ranges of numbers that its entries have."""
        fed, after = Fed(1), b"-"
        while entries := self._redis.xrange(self._name, after, count=_PAGE):
            for _, fields in entries:
                if b"number" in fields:
                    fed.add(int(fields[b"number"]))
            after = b"(" + entries[-1][0]
        return fed.ranges

    def add(self, flights: Sequence[Flight]) -> None:
        """Add entries in one transaction.

        Raises
        ------
        ConfigError
            If the stream has later flights already: Redis takes entries in the order of their ids only.
        """
        import redis

        with self._redis.pipeline(transaction=True) as pipeline:
            for number, at, value in flights:
                pipeline.xadd(self._name, {"value": value, "number": number}, id=f"{at}-{number}")
            try:
                pipeline.execute()
            except redis.ResponseError as error:
                if "equal or smaller" not in str(error):
                    raise
                raise ConfigError(
                    f"stream {self._name} has later flights than these, and takes no earlier ones any more",
                    state="flights that were later are in the stream, once",
                    next_step="delete the stream and feed it again, or feed another one",
                ) from None


class Socket:
    """A TCP server of this machine that sends flights, one to a line, to the first client that connects."""

    def __init__(self, port: str) -> None:
        if not port.isdecimal():
            raise ConfigError(
                f"{port!r} is no port", state="nothing was sent", next_step="name a number, as in socket:9999"
            )
        try:
            self._server = socket.create_server(("localhost", int(port)))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"nothing can be served at port {port}: {error}",
                state="nothing was sent",
                next_step="name a port that is free, from 1024 to 65535",
            ) from error
        self._client: socket.socket | None = None

    def held(self) -> list[Range]:
        """Return none: it does not know what earlier clients got."""
        return []

    def add(self, flights: Sequence[Flight]) -> None:
        """Send flights; the first time, wait for the client, such as a run of a pipeline.

        Raises
        ------
        ConfigError
            If the client hangs up. A part of these flights may have reached it.
        """
        if self._client is None:
            self._client, _ = self._server.accept()
        try:
            self._client.sendall(b"".join(flight.value + b"\n" for flight in flights))
        except OSError as error:
            raise ConfigError(
                f"the client hung up: {error}",
                state=f"flights before number {flights[0].number} were sent, and some of those up to "
                f"{flights[-1].number}",
                next_step="let the run listen for longer (source.socket.listen), and feed again; or feed less, by "
                "--from and --until",
            ) from error


_KINDS: dict[str, tuple[str, Callable[[str], Target]]] = {
    "files": ("a folder", Files),
    "table": ("a table of postgres_default", lambda name: Table(name, find("postgres_default"))),
    "socket": ("a port that a run connects to", Socket),
    "stream": ("a stream of redis_default", lambda name: Stream(name, find("redis_default"))),
}


def target_of(text: str) -> Target:
    """Return the target that ``KIND:NAME`` names.

    Raises
    ------
    ConfigError
        If there is no such kind, or its connection is not defined.
    """
    kind, _, name = text.partition(":")
    if kind not in _KINDS or not name:
        raise ConfigError(
            f"{text!r} names nothing that can be fed",
            state="nothing was written",
            next_step="; ".join(f"{known}:NAME is {what}" for known, (what, _) in _KINDS.items()),
        )
    return _KINDS[kind][1](name)
