"""Connections to a PostgreSQL database, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc

from sluice.connections import Connection
from sluice.errors import ConfigError, SinkError, SluiceError, quoted
from sluice.postgres import WRONG, text_of, url_of
from sluice_spark.sinks.base import Refusal, RowsRefusedError

__all__ = [
    "EXHAUSTED", "REFUSALS", "SURROUNDINGS", "AdbcError", "connected", "describe", "may_be_of_a_row", "refusal",
]  # fmt: skip

AdbcError = adbc_driver_manager.Error


_MISTAKES = {"0A", "28", "3D", "3F", "42", "55"}
"""Classes of errors that no other attempt cures: rights, names, syntax, what a table does not allow."""
REFUSALS = {"21", "22", "23", "27", "44", "54", "P0"}
"""Classes of errors that a row causes: its values, constraints, triggers, limits."""

SURROUNDINGS = {"08", "0A", "25", "26", "28", "34", "3D", "3F", "40", "53", "55", "57", "58"}
"""Classes of errors that no row causes. One of another class may be a row's: a trigger's, or that of a function in a
constraint."""

EXHAUSTED = "2200H"
"""The error of a sequence that has no number left: no row is at fault."""

_IN_COPY = re.compile(r"ERROR: (.*?) CONTEXT: COPY \S+, line \d+, column (.*?)(?=:| \. SQLSTATE|$)")
"""The message of the client library for an error in COPY: the error and the column."""


@contextmanager
def connected(connection: Connection, what: str) -> Iterator[Any]:
    """Open a connection, whose one transaction the block commits or leaves to be rolled back.

    Parameters
    ----------
    what
        The table in words, for messages.

    Raises
    ------
    SinkError, ConfigError
        For each error of the database; see :func:`describe`.
    """
    try:
        with adbc.connect(url_of(connection), autocommit=False) as opened:
            with opened.cursor() as cursor:
                # a role may have other defaults
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # what follows a lock sees what it did
                cursor.execute("SET LOCAL standard_conforming_strings = on")
                cursor.execute("SET LOCAL TIME ZONE 'UTC'")
                cursor.execute("SET LOCAL lock_timeout = '600s'")
                cursor.execute("SET LOCAL statement_timeout = 0")  # a batch may take long
                cursor.execute("SET LOCAL client_encoding = 'UTF8'")  # as Arrow's texts, whatever the database has
                # the server's side: a machine that loses its power must not keep the table's lock for hours
                for name, value in (("idle", 30), ("interval", 10), ("count", 3)):
                    cursor.execute(f"SET LOCAL tcp_keepalives_{name} = {value}")
                cursor.execute("SET LOCAL row_security = off")  # an error instead of rows that are not seen
                # a commit that was answered must survive a crash of the server
                cursor.execute(
                    "SELECT set_config('synchronous_commit', 'on', true) "
                    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
                )
            yield opened
    except AdbcError as error:
        raise describe(error, what) from error


def describe(error: Any, what: str) -> SluiceError:
    """Return the error of Sluice for one of the database."""
    code = getattr(error, "sqlstate", None) or ""
    text = text_of(error)
    said = quoted(text)
    state = "nothing of this batch was committed; what was committed before stays"
    if code == "55P03":
        return SinkError(
            f"another transaction keeps {what} locked for ten minutes",
            state=state,
            next_step="SELECT pid, state, query FROM pg_stat_activity shows it; end it, and run again",
        )
    kind = getattr(getattr(error, "status_code", None), "name", "")
    if (
        code[:2] in _MISTAKES
        or code == "25006"
        or kind in ("UNAUTHORIZED", "NOT_FOUND")
        or (not code and WRONG.search(text))
    ):
        return ConfigError(
            f"{what}: {said}",
            state=state,
            next_step="correct the connection, the role's rights or the table; run again",
        )
    if code == "21000" and "ON CONFLICT" in text:
        return ConfigError(
            f"{what}: two records of a batch have keys that differ, and a trigger of the table makes them the same",
            state=state,
            next_step="write the key as the table has it in the transform, for example lower(id) AS id; or remove the "
            "trigger; run again",
        )
    if code == "22021":
        return RowsRefusedError(
            f"{what}: a text has a zero character, and PostgreSQL holds none: {said}",
            state=state,
            next_step=r"add a row rule that refuses such records, for example {name: no_zero, sql: {passes: "
            r'"instr(name, chr(0)) = 0"}}, and run again: they go to the quarantine',
        )
    if code[:2] in REFUSALS and code != EXHAUSTED:
        return RowsRefusedError(
            f"{what} refuses a row: {said}",
            state=state,
            next_step="add a row rule that refuses such records, or change the table; then run again",
        )
    return SinkError(f"{what}: {said}", state=state, next_step="run again when the database answers")


def may_be_of_a_row(error: Any) -> bool:
    """Return whether an error of a statement that writes rows may be that of a row, although others have it, too."""
    code = getattr(error, "sqlstate", None) or ""
    if "RAISE" in str(error):  # a trigger's own words, whatever their code; servers translate what is around it
        return True
    return bool(code) and code[:2] not in SURROUNDINGS and code != EXHAUSTED


def refusal(error: Exception) -> Refusal:
    """Return why COPY refuses a row, without other values of the row."""
    text = text_of(error)
    copied = _IN_COPY.search(text)
    return Refusal(text) if copied is None else Refusal(*copied.groups())
