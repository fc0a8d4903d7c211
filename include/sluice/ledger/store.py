"""Opens the ledger's database, at the schema version that this code knows."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from sluice.errors import ConfigError, LeaseHeldError, SluiceError, described
from sluice.faults import point
from sluice.ledger import schema
from sluice.ledger.projection import clear, project_next
from sluice.ledger.schema import HEAD, VERSION_TABLE

__all__ = ["LedgerError", "Queries", "network_of", "open_engine", "spoken"]

_READS = "sluice_reads"

_NETWORK = (
    "nfs", "cifs", "smb", "9p", "ceph", "lustre", "glusterfs", "afs", "gfs", "ocfs2", "beegfs", "gpfs", "pvfs",
    "orangefs", "ncpfs", "virtiofs", "fuse.",
)  # fmt: skip
"""Prefixes of the types of file systems that other machines may have mounted, too."""

_PRIVATE = ("fuse.fuse-overlayfs", "fuse.lxcfs")


class LedgerError(SluiceError):
    """The ledger cannot be reached; nothing is written without it."""


def open_engine(url: str) -> sa.Engine:
    """Return an engine on a ledger with the current schema; create or migrate it if needed.

    Raises
    ------
    LedgerError
        If the database does not answer.
    ConfigError
        If the URL is not a database URL, or the schema is newer than this code.
    LeaseHeldError
        If it is to be migrated, and a driver of an earlier version is at work.
    """
    try:
        parsed = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # of a port that is no number
        raise ConfigError(
            "SLUICE_LEDGER_URL is not a database URL",
            state="nothing was read or written",
            next_step="write it as postgresql+psycopg2://user:password@host/database, or leave it unset for SQLite",
        ) from None
    if "@" in (parsed.host or ""):  # SQLAlchemy ends a password at its first @, and would show the rest
        raise ConfigError(
            "SLUICE_LEDGER_URL has more than one @ before its host",
            state="nothing was read or written",
            next_step="write an @ in the password as %40",
        )
    sqlite = parsed.drivername.partition("+")[0] == "sqlite"
    try:
        engine = sa.create_engine(parsed, connect_args=_waiting(parsed), pool_pre_ping=not sqlite)
    except (sa.exc.ArgumentError, ImportError) as error:
        raise ConfigError(
            f"SLUICE_LEDGER_URL names {parsed.drivername!r}, for which there is no driver: {error}",
            state="nothing was read or written",
            next_step="write it as postgresql+psycopg2://user:password@host/database, or install the driver",
        ) from None
    if sqlite and parsed.database:
        _warn_of_network(Path(parsed.database))
        _make(Path(parsed.database))
    if sqlite:
        _one_writer_at_a_time(engine)
    try:
        if _version(engine) != HEAD:
            _migrate(engine)
    except SQLAlchemyError as error:
        if sqlite and type(getattr(error, "orig", None)) is sqlite3.DatabaseError:
            raise LedgerError(
                f"the ledger at {masked(url)} is damaged, or no ledger: {described(getattr(error, 'orig', error))}",
                state="nothing was read or written: a run does not write what it cannot account for",
                next_step="put it back from a copy, with the rest of the home; or set SLUICE_HOME (or "
                "SLUICE_LEDGER_URL) to the right place",
            ) from error
        raise LedgerError(
            f"the ledger at {masked(url)} cannot be opened: {described(getattr(error, 'orig', None) or error)}",
            state="nothing was read or written: a run does not write what it cannot account for",
            next_step="see whether its disk is full or read-only, and whether this user may write there; then run again"
            if sqlite
            else "start the database or fix SLUICE_LEDGER_URL, then run again",
        ) from error
    return engine


def masked(url: str) -> str:
    """Return a database URL without its password, wherever it is written."""
    parsed = sa.engine.make_url(url)
    query = {key: "***" if "pass" in key.lower() else value for key, value in parsed.query.items()}
    return parsed.set(query=query).render_as_string(hide_password=True)


def _make(file: Path) -> None:
    """Create the ledger's file for this user alone, as it has samples of records; an existing one keeps its mode."""
    try:
        if file.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        os.makedirs(file.parent, 0o700, exist_ok=True)
        if not file.exists() and not str(file).startswith("file:"):  # a URI is SQLite's to read
            file.touch(0o600)
    except OSError as error:
        raise ConfigError(
            f"the ledger {file} cannot be created: {error.strerror or error}",
            state="nothing was read or written",
            next_step="create it and make it writable for this user, or set SLUICE_HOME (or SLUICE_LEDGER_URL) to "
            "another place",
        ) from None


@contextmanager
def spoken() -> Iterator[None]:
    """Convert database errors into a :class:`LedgerError`."""
    try:
        yield
    except SQLAlchemyError as error:
        raise LedgerError(
            f"the ledger does not answer: {getattr(error, 'orig', None) or error}",
            state="nothing was committed without the ledger; the next run reconciles a batch that the sink committed",
            next_step="fix the database, then run again",
        ) from error
    except ValueError as error:  # UnicodeEncodeError, or psycopg2's: raised before the database was asked
        if not isinstance(error, UnicodeEncodeError) and "NUL" not in str(error):
            raise
        raise ConfigError(
            "a name or an id has a character that no database can store: NUL, or a lone surrogate",
            state="nothing was read or written",
            next_step="write it with printable characters",
        ) from None


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Connect for queries only: in SQLite it neither blocks a writer nor waits for one."""
    with engine.connect().execution_options(**{_READS: True}) as connection:
        yield connection


class Queries:
    """Reads the ledger: what its query objects share."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with spoken(), reading(self._engine) as connection:
            return connection.execute(query).mappings().all()

    def _emptied(self, pipeline: str) -> int:
        """Return the id of the newest reset that took all rows out of the tables; 0 if there was none."""
        table = schema.event
        query = sa.select(table.c.id, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type == "PipelineReset"
        )
        rows = self._rows(query.order_by(table.c.id.desc()))
        return next((int(row["id"]) for row in rows if row["payload"]["truncated"]), 0)


def network_of(database: Path, mounts: str | None = None) -> str | None:
    """Return the type of a path's file system if it is a network file system, otherwise None.

    Parameters
    ----------
    mounts
        Content to use instead of ``/proc/self/mounts``.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
        except OSError:  # not Linux
            return None
    path, found = database.resolve(), (-1, "")
    for line in mounts.splitlines():
        escaped, kind = line.split(" ")[1:3]
        where = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), escaped)
        if path.is_relative_to(where) and len(where) >= found[0]:
            found = (len(where), kind)  # of two mounts on one folder, the later one hides the other
    return found[1] if found[1].startswith(_NETWORK) and found[1] not in _PRIVATE else None


@cache
def _warn_of_network(database: Path) -> None:
    kind = network_of(database)
    if kind is not None:
        logging.getLogger("sluice").warning(
            "the ledger %s is a SQLite file on a network file system (%s): it is safe for one machine only; two may "
            "damage it. For more than one host set SLUICE_LEDGER_URL to a PostgreSQL database",
            database, kind,
        )  # fmt: skip


def _waiting(url: sa.engine.URL) -> dict[str, Any]:
    # seconds to wait for a locked file, and for a host that accepts and does not answer; a URL may set its own
    name, _, driver = url.drivername.partition("+")
    libpq = name == "postgresql" and driver in ("", "psycopg", "psycopg2")
    argument = ("timeout", 30) if name == "sqlite" else ("connect_timeout", 10) if libpq else None
    return {} if argument is None or argument[0] in url.query else dict([argument])


def _one_writer_at_a_time(engine: sa.Engine) -> None:
    # pysqlite begins a transaction late and as a reader; a ledger write must hold the write lock from the start
    @sa.event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")
        record.info["file"] = _file_of(engine)

    @sa.event.listens_for(engine, "checkout")
    def _checkout(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info.get("file") != _file_of(engine):  # a copy was restored in its place
            raise sa.exc.DisconnectionError

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # a reader's snapshot neither waits nor blocks; a writer must hold the lock from its first statement
        reads = connection.get_execution_options().get(_READS)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _file_of(engine: sa.Engine) -> tuple[int, int] | None:
    try:
        found = os.stat(engine.url.database or "")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _use_wal(connection: Any) -> None:
    # two drivers may create the file at once, and SQLite's timeout does not cover this change of mode
    deadline = time.monotonic() + 30
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _version(engine: sa.Engine) -> str | None:
    asked = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")
    try:
        with reading(engine) as connection:
            return connection.execute(asked).scalar()
    except (OperationalError, ProgrammingError):
        # the message may be in any language
        with reading(engine) as connection:
            return _version_in(connection)  # another process may have made it meanwhile


def _migrate(engine: sa.Engine) -> None:
    """Change the schema, then recreate the derived tables from the events, a page in each transaction.

    The version is ``HEAD:ID`` until the last event is applied: no other version opens such a ledger, and each process
    of this one that opens it applies the events behind ``ID``. So a migration that was killed goes on where it was.
    """
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7164815)"))
        version = _version_in(connection)
        if version == HEAD:
            return
        revision, _, applied = (version or "").partition(":")
        if revision != HEAD or not applied:
            _refuse_beside_drivers(connection)
            if applied:
                _set_version(connection, revision)
            _upgrade(connection)
            clear(connection)
            _set_version(connection, f"{HEAD}:0")
    count = 0
    while page := _apply_next(engine):
        count += page
        if count % 100_000 == 0:
            logging.getLogger("sluice").info("the ledger is migrated: %s events applied", f"{count:,}")


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, HEAD)
    except CommandError as error:
        raise ConfigError(
            f"the ledger's schema is not one that this version knows: {error}",
            state="nothing was read or written",
            next_step="use the version of sluice that wrote it last, or a newer one",
        ) from error


def _apply_next(engine: sa.Engine) -> int:
    """Apply a page of events to the derived tables; return how many there were."""
    with engine.begin() as connection:
        lock = " FOR UPDATE" if engine.dialect.name == "postgresql" else ""
        version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}{lock}")).scalar_one()
        if version == HEAD:  # another process applied the rest
            return 0
        page = project_next(connection, int(version.partition(":")[2]))
        _set_version(connection, f"{HEAD}:{page[-1]}" if page else HEAD)
    point("events-applied")
    return len(page)


def _version_in(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _set_version(connection: sa.Connection, version: str) -> None:
    connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = :version"), {"version": version})


def _refuse_beside_drivers(connection: sa.Connection) -> None:
    """Refuse to migrate while a driver of the earlier version is at work, and keep others out meanwhile.

    It would write to tables that it does not know.
    """
    from sluice.ledger.lease import Lease

    lease = schema.lease
    if not sa.inspect(connection).has_table(lease.name):
        return
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"LOCK TABLE {lease.name} IN SHARE ROW EXCLUSIVE MODE"))
    if busy := Lease.at_work(connection):
        raise LeaseHeldError(
            f"the ledger was written by an earlier version of sluice, and {', '.join(busy[:3])} is at work with it",
            state="nothing was read or written; the ledger is as it was",
            next_step="pause the DAGs, and run again when that run has ended: the ledger is migrated then",
        )
