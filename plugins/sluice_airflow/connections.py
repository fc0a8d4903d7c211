"""Converts Airflow's connections to those of the core; no other module does."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from sluice.connections import Connection, example_of, variable_of
from sluice.errors import ConfigError

__all__ = ["aget", "convert", "get", "stored"]

_UNTOUCHED = "nothing was read or written"


def convert(connection: Any) -> Connection:
    """Convert an Airflow connection to one of the core.

    Raises
    ------
    ConfigError
        When its extra is not a JSON object. (Airflow itself would log that and go on with an empty one.)
    """
    extra = connection.extra or "{}"
    try:
        data = json.loads(extra) if isinstance(extra, str) else extra
        data = json.loads(data) if isinstance(data, str) else data
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ConfigError(
            f"the extra of connection {connection.conn_id!r} is not a JSON object",
            state=_UNTOUCHED,
            next_step="fix it in Airflow: Admin, Connections",
        )
    return Connection(
        conn_id=connection.conn_id,
        conn_type=connection.conn_type or "",
        host=connection.host or None,
        port=int(connection.port) if connection.port else None,
        login=connection.login or None,
        password=connection.password or None,
        schema=connection.schema or None,
        extra=data,
    )


def get(conn_id: str) -> Connection:
    """Return a connection, from wherever Airflow keeps it.

    Raises
    ------
    ConfigError
        When Airflow has none with this id, or cannot read the one that it has.
    """
    try:
        return convert(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException:
        raise _missing(conn_id) from None


async def aget(conn_id: str) -> Connection:
    """Do what :func:`get` does from a trigger's event loop, without blocking it."""
    try:
        return convert(await BaseHook.aget_connection(conn_id))
    except AirflowNotFoundException:
        raise _missing(conn_id) from None


def stored(conn_id: str) -> Connection:
    """Do what :func:`get` does in the API server, which reads Airflow's database itself.

    A server's threads share stdout, so it is left alone, unlike by
    :class:`~sluice_airflow.connection_store.AirflowStore`.
    """
    from airflow.models.connection import Connection as Row

    try:
        return convert(Row.get_connection_from_secrets(conn_id))
    except AirflowNotFoundException:
        raise _missing(conn_id) from None


def _missing(conn_id: str) -> ConfigError:
    variable = variable_of(conn_id)
    if os.environ.get(variable):  # Airflow skips what it cannot parse and then says that there is none
        return ConfigError(
            f"Airflow cannot read connection {conn_id!r} from {variable}",
            state=_UNTOUCHED,
            next_step="write the variable as a JSON object with conn_type, host, extra",
        )
    return ConfigError(
        f"connection {conn_id!r} is not defined",
        state=_UNTOUCHED,
        next_step=f"airflow connections add {conn_id} --conn-json '{json.dumps(example_of(conn_id))}', "
        f"or set {variable} to that JSON",
    )
