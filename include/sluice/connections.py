"""Airflow's connections, read outside Airflow from ``AIRFLOW_CONN_<ID>`` so that one definition serves both."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import ConfigError

__all__ = ["Connection", "variable_of"]


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
            raise ConfigError(
                f"connection {conn_id!r} is not defined",
                state="nothing was read or written",
                next_step=f"define it in Airflow, or set {variable} in JSON form, for example "
                + ('{"conn_type":"kafka","extra":{"bootstrap.servers":"localhost:9092"}}' if "spark" not in conn_id else
                   '{"conn_type":"spark","host":"local[2]"}'),
            )  # fmt: skip
        try:
            data = json.loads(text)
            extra = data.get("extra") or {}
            extra = json.loads(extra) if isinstance(extra, str) else extra
            port = int(data["port"]) if data.get("port") else None
        except (ValueError, AttributeError):
            raise ConfigError(
                f"{variable} is not in JSON form",
                state="nothing was read or written",
                next_step="write it as a JSON object with conn_type, host, extra",
            ) from None
        return cls(
            conn_id,
            str(data.get("conn_type") or ""),
            data.get("host"),
            port,
            data.get("login"),
            data.get("password"),
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
            "extra": self.extra,
        }
        return json.dumps({k: v for k, v in data.items() if v})
