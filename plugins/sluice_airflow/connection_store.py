"""Airflow's connections for the command ``sluice``, which runs outside of Airflow's processes.

A task asks Airflow's API server. A command on a machine with Airflow's configuration does what the command ``airflow
connections get`` does: it asks the secrets backends and the metadata database. It needs the same database URL and
Fernet key as Airflow's components. Importing Airflow takes seconds and makes files, so that happens only for a
connection that no variable defines, and only where there is an Airflow.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from configparser import ConfigParser, Error
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.connections import Connection

__all__ = ["STORE", "AirflowStore"]

_SETTINGS = ("AIRFLOW_HOME", "AIRFLOW_CONFIG", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN")
"""Each says that an Airflow is meant; so do the forms of the last one by a command or a secret."""


class AirflowStore:
    """Secrets backends and database of the Airflow that this shell is configured for."""

    def get(self, conn_id: str) -> Connection | None:
        """Return a connection; None if Airflow has none, or none is configured.

        Raises
        ------
        ConfigError
            If Airflow has it and it cannot be read: another Fernet key, no JSON in its extra, or a refusal.
        """
        if _absent():
            return None
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            from airflow.exceptions import AirflowNotFoundException
            from airflow.models import Connection as Stored

            from sluice_airflow.connections import convert

            try:
                return convert(Stored.get_connection_from_secrets(conn_id))
            except AirflowNotFoundException:
                # also of one that is there and cannot be decrypted
                holders = [name for name, there, _ in _asked(conn_id) if there]
                if not holders:
                    return None
                why = f"{holders[0]} has it, in another form or with another Fernet key"
            except ConfigError:
                raise
            except Exception as error:  # whatever a backend raises to forbid it
                why = type(error).__name__
        raise ConfigError(
            f"connection {conn_id!r} of Airflow cannot be read: {why}",
            state="nothing was read or written",
            next_step="give this shell the settings of Airflow's components, such as the same "
            f"AIRFLOW__CORE__FERNET_KEY, until airflow connections get {conn_id} shows it",
        )

    def __str__(self) -> str:
        return f"Airflow ({_config()})"

    def explain(self, conn_id: str) -> str:
        """Return where it looked, with the backends that failed."""
        absent = _absent()
        if absent:
            return absent
        with contextlib.redirect_stdout(sys.stderr):
            asked = [name + (f" (which failed: {failure})" if failure else "") for name, _, failure in _asked(conn_id)]
        return f"{self} does not have it in {', '.join(asked)}"


STORE = AirflowStore()


def _absent() -> str:
    """Return why there is no Airflow to ask; empty if there is. Importing one that is not there would make one."""
    if find_spec("airflow") is None:
        return "Airflow is not installed here"
    named = any(os.environ.get(name + suffix) for name in _SETTINGS for suffix in ("", "_CMD", "_SECRET"))
    if not named and not _config().is_file():
        return "Airflow was not asked, because AIRFLOW_HOME is not set"
    file = None if _setting("secrets", "backend") else _sqlite()
    if file is not None and not (file.is_file() and file.stat().st_size):
        return f"Airflow was not asked, because its database {file} is missing or empty"
    return ""


def _sqlite() -> Path | None:
    """Return the file of Airflow's database; None if it is another database, or cannot be known without Airflow."""
    url = _setting("database", "sql_alchemy_conn") or f"sqlite:///{_home()}/airflow.db"
    try:
        parsed = make_url(url)
    except ArgumentError:
        return None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(str(parsed.database))


def _setting(section: str, key: str) -> str:
    """Return one of Airflow's settings as far as it can be read without Airflow; empty if it is not set.

    For one that a command or a secret says, return the command, or the secret's name. Variables come
    first, as in Airflow.
    """
    given = ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    with contextlib.suppress(OSError, ValueError, Error):
        given.read(_config(), encoding="utf-8")
    forms = [f"{key}{suffix}" for suffix in ("", "_cmd", "_secret")]
    variables = [os.environ.get(f"AIRFLOW__{section}__{form}".upper()) for form in forms]
    said = [*variables, *(given.get(section, form, fallback=None) for form in forms)]
    return os.path.expandvars(os.path.expanduser(next((text for text in said if text), ""))).replace("%%", "%")


def _home() -> Path:
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()


def _config() -> Path:
    given = os.environ.get("AIRFLOW_CONFIG")
    return Path(given).expanduser() if given else _home() / "airflow.cfg"


def _asked(conn_id: str) -> Iterator[tuple[str, bool, str]]:
    """Yield, for each backend, whether it has a connection, and its failure: Airflow passes over one that fails."""
    from airflow.configuration import ensure_secrets_loaded

    for backend in ensure_secrets_loaded():
        name = type(backend).__name__
        try:
            yield name, backend.get_connection(conn_id=conn_id) is not None, ""
        except Exception as error:
            yield name, False, type(error).__name__
