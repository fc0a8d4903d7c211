"""Airflow's connections, read outside Airflow: one definition serves both.

The variable ``AIRFLOW_CONN_<ID>`` comes first. Only where it is not set are the stores asked that packages register in
the entry point group ``sluice.connections``. Sluice's Airflow side registers one, which takes seconds to import.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from sluice.errors import ConfigError

__all__ = ["Connection", "Store", "check_host", "example_of", "find", "look_up", "variable_of"]

_GROUP = "sluice.connections"


def variable_of(conn_id: str) -> str:
    """Return the environment variable that defines a connection."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


@dataclass(frozen=True)
class Connection:
    """The parts of an Airflow connection that sluice reads. Its ``repr`` shows no secret."""

    conn_id: str
    conn_type: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    """The database, of a connection to one."""
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_env(cls, conn_id: str) -> Connection:
        """Read a connection from the environment.

        Raises
        ------
        ConfigError
            If the variable is missing, is a URI, or is not in JSON form. A URI is refused because Airflow's Spark hook
            silently turns some of them into the master ``yarn``.
        """
        variable = variable_of(conn_id)
        text = os.environ.get(variable)
        if not text:
            raise _missing(conn_id, [f"{variable} is not set"])
        try:
            data = json.loads(text)
            extra = data.get("extra") or {}
            extra = json.loads(extra) if isinstance(extra, str) else extra
            port = int(data["port"]) if data.get("port") else None
            if not isinstance(extra, dict):
                raise TypeError
        except (ValueError, AttributeError, TypeError):
            raise ConfigError(
                f"{variable} is not in JSON form",
                state="nothing was read or written",
                next_step="write it as a JSON object with conn_type, host, port (a number) and extra (an object)",
            ) from None
        return cls(
            conn_id,
            str(data.get("conn_type") or ""),
            data.get("host"),
            port,
            data.get("login"),
            data.get("password"),
            data.get("schema"),
            dict(extra),
        )

    def to_json(self) -> str:
        """Return the JSON form, for the environment of a child process only."""
        data = {
            "conn_type": self.conn_type,
            "host": self.host,
            "port": self.port,
            "login": self.login,
            "password": self.password,
            "schema": self.schema,
            "extra": self.extra,
        }
        return json.dumps({k: v for k, v in data.items() if v})


def check_host(connection: Connection, part: str = "://", what: str = "is a URL") -> None:
    """Refuse a host that has more in it than its name: messages name the host, and would show a password in it.

    Raises
    ------
    ConfigError
        Without the host.
    """
    if part in (connection.host or ""):
        raise ConfigError(
            f"connection {connection.conn_id!r}: its host {what}",
            state="nothing was read or written",
            next_step="write the host's name alone, and the login and the password where they are kept secret",
        )


class Store(Protocol):
    """Another place in which connections are kept; a package names an object of this kind by an entry point."""

    def get(self, conn_id: str) -> Connection | None:
        """Return a connection; None if it is not there, or there is no such place.

        Raises
        ------
        ConfigError
            If it is there and cannot be read.
        """

    def __str__(self) -> str:
        """Return where this is, for people."""

    def explain(self, conn_id: str) -> str:
        """Return why :meth:`get` returned None, for an error: where it looked, and what failed. No secret."""


def look_up(conn_id: str) -> Connection | None:
    """Return a connection from the environment or, if it is not there, from the first store that has it.

    For one from a store, stderr says so, once in a process: it changes where a run goes, and a shell does not show it.

    Raises
    ------
    ConfigError
        If it is defined and cannot be read, or has a login in its host.
    """
    if os.environ.get(variable_of(conn_id)):
        return _without_login(Connection.from_env(conn_id))
    for store in _stores():
        found = store.get(conn_id)
        if found is not None:
            _tell(conn_id, _without_login(found).host or "", str(store))
            return found
    return None


def _without_login(connection: Connection) -> Connection:
    check_host(connection, "@", "has a login in it")
    return connection


def find(conn_id: str) -> Connection:
    """Do what :func:`look_up` does, for a connection that is needed.

    Raises
    ------
    ConfigError
        If it is not defined, with all places that were searched; or if it cannot be read.
    """
    found = look_up(conn_id)
    if found is None:
        raise _missing(
            conn_id, [f"{variable_of(conn_id)} is not set", *(store.explain(conn_id) for store in _stores())]
        )
    return found


@cache
def _tell(conn_id: str, host: str, store: str) -> None:
    at = f", host {host}" if host else ""
    sys.stderr.write(f"connection {conn_id!r} is that of {store}{at}: {variable_of(conn_id)} is not set\n")


@cache
def _stores() -> tuple[Store, ...]:
    return tuple(point.load() for point in sorted(entry_points(group=_GROUP)))


def example_of(conn_id: str) -> dict[str, Any]:
    """Return a connection in JSON form, as one with this id may look."""
    example: dict[str, Any] = {"conn_type": "kafka", "extra": {"bootstrap.servers": "localhost:9092"}}
    if "spark" in conn_id:
        example = {"conn_type": "spark", "host": "local[2]"}
    if "iceberg" in conn_id:
        example = {"conn_type": "iceberg", "host": "https://catalog.example.com", "extra": {"warehouse": "s3://lake"}}
    if "redis" in conn_id:
        example = {"conn_type": "redis", "host": "localhost", "port": 6379}
    if "nats" in conn_id:
        example = {"conn_type": "generic", "host": "localhost", "port": 4222}
    if "registry" in conn_id:
        example = {"conn_type": "http", "host": "http://localhost:8081"}
    if "postgres" in conn_id:
        example = {"conn_type": "postgres", "host": "localhost", "login": "me", "password": "...", "schema": "shop"}
    return example


def _missing(conn_id: str, searched: list[str]) -> ConfigError:
    return ConfigError(
        f"connection {conn_id!r} is not defined: {'; '.join(searched)}",
        state="nothing was read or written",
        next_step=f"define it in Airflow, or set {variable_of(conn_id)} in JSON form, for example "
        + json.dumps(example_of(conn_id), separators=(",", ":")),
    )
