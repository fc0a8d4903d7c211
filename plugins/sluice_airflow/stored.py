"""Airflow's connections for the command ``sluice``, which runs outside of Airflow's processes.

A task asks Airflow's API server. A command on a machine with Airflow's configuration does what the command ``airflow
connections get`` does: it asks the secrets backends and the metadata database. It needs the same database URL and
Fernet key as Airflow's components. Importing Airflow takes seconds, so that happens only for a connection that no
variable defines, and only where an Airflow is configured.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

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

    def explain(self, conn_id: str) -> str:
        """Return where it looked, with the backends that failed."""
        absent = _absent()
        if absent:
            return absent
        with contextlib.redirect_stdout(sys.stderr):
            from airflow.configuration import AIRFLOW_CONFIG

            asked = [name + (f" (which failed: {failure})" if failure else "") for name, _, failure in _asked(conn_id)]
        return f"Airflow ({AIRFLOW_CONFIG}) does not have it in {', '.join(asked)}"


STORE = AirflowStore()


def _absent() -> str:
    """Return why there is no Airflow to ask; empty if there is. Importing one that nobody configured would make one."""
    if find_spec("airflow") is None:
        return "Airflow is not installed here"
    named = any(os.environ.get(name + suffix) for name in _SETTINGS for suffix in ("", "_CMD", "_SECRET"))
    if named or Path("~/airflow/airflow.cfg").expanduser().is_file():
        return ""
    return "Airflow was not asked, because AIRFLOW_HOME is not set"


def _asked(conn_id: str) -> Iterator[tuple[str, bool, str]]:
    """Yield, for each backend, whether it has a connection, and its failure: Airflow passes over one that fails."""
    from airflow.configuration import ensure_secrets_loaded

    for backend in ensure_secrets_loaded():
        name = type(backend).__name__
        try:
            yield name, backend.get_connection(conn_id=conn_id) is not None, ""
        except Exception as error:
            yield name, False, type(error).__name__
