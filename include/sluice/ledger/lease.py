"""The lease: who may write a pipeline now. One row with a fencing token and an expiry time."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import schema
from sluice.ledger.store import network_of, reading, spoken

__all__ = ["Holder", "Lease"]

TTL = 60.0
"""Seconds after which a lease expires unless it is renewed."""


def _started(pid: int) -> str | None:
    """Return when a process of this machine started (ticks since boot); None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] == "Z" else stat[19]


def _hidden(pid: int) -> bool:
    """Return whether a process lives whose entry in ``/proc`` (mounted with ``hidepid``) this user may not read."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.access("/proc/1/stat", os.R_OK)
    except OSError:
        pass
    return False


def _boot() -> str:
    """Identify this boot of the machine and the namespace (of a container) in which process ids are valid."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Holder:
    """The identity of a driver, by which another driver on the same machine can see whether it is still alive."""

    run: str
    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def me(cls, run_id: str) -> Holder:
        """Return the identity of this process."""
        pid = os.getpid()
        return cls(run_id, socket.gethostname(), _boot(), pid, _started(pid) or "")

    def is_dead(self) -> bool:
        """Return whether the driver is certainly dead; always False for a driver on another machine."""
        if self.host != socket.gethostname() or not self.boot == _boot() != "":
            return False
        started = _started(self.pid)
        return started != self.started and (started is not None or not _hidden(self.pid))


class Lease:
    """The right to write one pipeline, or one scope of it.

    The scope is empty for live runs, redriving and cleaning, of which only one may be at work. Otherwise it names an
    interval; intervals may be replaced beside each other and beside the live pipeline.

    A killed driver's lease can be taken over at once if the driver ran on this machine, otherwise when the lease
    expires (:data:`TTL` seconds after its last renewal). Taking over increases the token. A driver with a lower token
    is fenced: the ledger refuses its events, and it stops before its next commit. The sink's transaction version closes
    the gap between that check and the commit.
    """

    def __init__(self, engine: sa.Engine, pipeline: str, holder: Holder, token: int, scope: str = "") -> None:
        self._engine = engine
        self.pipeline = pipeline
        self.scope = scope
        self.holder = holder
        self.token = token
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def acquire(cls, engine: sa.Engine, pipeline: str, run_id: str, *, scope: str = "", later: float = 0.0) -> Lease:
        """Take the lease.

        Parameters
        ----------
        later
            Seconds to add to the time, for tests.

        Raises
        ------
        LeaseHeldError
            If a driver that may be alive holds it; with the driver and the time until the lease expires.
        ConfigError
            If the ledger is a SQLite file on a network file system, and another machine writes it now.
        """
        holder = Holder.me(run_id)
        table = schema.lease
        with engine.begin() as connection:
            here, now = _row(pipeline, scope), _time(connection) + later
            row = connection.execute(sa.select(table).where(here).with_for_update()).mappings().first()
            if row is None:
                token = 1
                _alone(connection, holder, now)
                # if two first drivers race, the primary key admits one; the other gets an IntegrityError
                connection.execute(
                    table.insert().values(
                        pipeline=pipeline, scope=scope, token=1, holder=asdict(holder), expires=now + TTL
                    )
                )
            else:
                other = Holder(**row["holder"]) if row["holder"] else None
                if other is not None and row["expires"] > now and not other.is_dead():
                    raise _held(pipeline, other, row["expires"] - now, scope=scope)
                token = int(row["token"]) + 1
                _alone(connection, holder, now)
                connection.execute(
                    table.update().where(here).values(token=token, holder=asdict(holder), expires=now + TTL)
                )
        return cls(engine, pipeline, holder, token, scope)

    @staticmethod
    def holders(engine: sa.Engine, pipeline: str, *, later: float = 0.0) -> dict[str, Holder]:
        """Return, by scope, the drivers that may be writing a pipeline now, by the same rule as :meth:`acquire`."""
        table = schema.lease
        with reading(engine) as connection:
            now = _time(connection) + later
            asked = sa.select(table.c.scope, table.c.holder).where(table.c.pipeline == pipeline, table.c.expires > now)
            return dict(_alive(connection.execute(asked)))

    @staticmethod
    def all_holders(engine: sa.Engine) -> dict[str, Holder]:
        """Return, by pipeline, the drivers of live runs that may be writing now."""
        table = schema.lease
        with reading(engine) as connection:
            asked = sa.select(table.c.pipeline, table.c.holder).where(
                table.c.scope == "", table.c.expires > _time(connection)
            )
            return dict(_alive(connection.execute(asked)))

    @staticmethod
    def at_work(connection: sa.Connection) -> list[str]:
        """Return the drivers that may be writing now, of all pipelines, in words."""
        table = schema.lease
        asked = sa.select(table.c.pipeline, table.c.holder).where(table.c.expires > _time(connection))
        return [f"run {holder.run!r} of {pipeline!r}" for pipeline, holder in _alive(connection.execute(asked))]

    def verify(self, connection: sa.Connection | None = None) -> None:
        """Check that the lease is still ours, and lock its row until the end of ``connection``'s transaction.

        Raises
        ------
        LeaseHeldError
            If another driver took over.
        LedgerError
            If the database does not answer; nothing may be committed then.
        """
        if connection is None:
            with spoken(), self._engine.begin() as own:
                return self.verify(own)
        table = schema.lease
        here = _row(self.pipeline, self.scope)
        row = connection.execute(sa.select(table).where(here).with_for_update()).mappings().first()
        if row is None or int(row["token"]) != self.token:
            other = Holder(**row["holder"]) if row and row["holder"] else None
            raise _held(self.pipeline, other, TTL, fenced=True, scope=self.scope)

    def keep(self) -> None:
        """Renew the lease in the background until :meth:`release`."""
        self._thread = threading.Thread(target=self._renew, name="sluice-lease", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        table = schema.lease
        while not self._stop.wait(TTL / 4):
            try:
                with self._engine.begin() as connection:
                    connection.execute(
                        table.update()
                        .where(_row(self.pipeline, self.scope), table.c.token == self.token)
                        .values(expires=_time(connection) + TTL)
                    )
            except sa.exc.SQLAlchemyError:
                continue  # the next write verifies the token; a lapsed lease is noticed there

    def release(self) -> None:
        """Release the lease; idempotent, and safe after another driver took over.

        If the database does not answer, no error is raised: the lease expires by itself, and a second error would hide
        why the run failed.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        table = schema.lease
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._engine.begin() as connection:
            connection.execute(
                table.update()
                .where(_row(self.pipeline, self.scope), table.c.token == self.token)
                .values(holder=sa.null(), expires=0.0)
            )

    def __enter__(self) -> Lease:
        self.keep()
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


def _time(connection: sa.Connection) -> float:
    """Return the time by which leases expire: the database's, since hosts need not agree."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def _alive(rows: Iterable[Any]) -> Iterator[tuple[str, Holder]]:
    """Yield the first value of each row with the driver in the second, unless there is none or it is dead."""
    for name, found in rows:
        holder = Holder(**found) if found else None
        if holder is not None and not holder.is_dead():
            yield name, holder


def _alone(connection: sa.Connection, me: Holder, now: float) -> None:
    """Refuse a second machine on a SQLite file: SQLite locks by shared memory, so two machines may damage the file."""
    database = connection.engine.url.database
    if connection.dialect.name != "sqlite" or not database or network_of(Path(database)) is None:
        return
    rows = connection.execute(sa.select(schema.lease.c.holder).where(schema.lease.c.expires > now)).scalars()
    for other in (Holder(**found) for found in rows if found):
        if other.host != me.host and other.boot != me.boot:
            raise ConfigError(
                f"the ledger {database} is a SQLite file on a network file system, and {other.host} writes it now (run "
                f"{other.run!r}): two machines may damage it",
                state="nothing was read or written",
                next_step="set SLUICE_LEDGER_URL to a PostgreSQL database on all machines; to go on with SQLite, run "
                "on only one machine",
            )


def _row(pipeline: str, scope: str) -> sa.ColumnElement[bool]:
    return sa.and_(schema.lease.c.pipeline == pipeline, schema.lease.c.scope == scope)


def _held(
    pipeline: str, other: Holder | None, remaining: float, *, fenced: bool = False, scope: str = ""
) -> LeaseHeldError:
    who = f"run {other.run!r}, process {other.pid} on {other.host}" if other else "another driver"
    what = "this driver was fenced: the lease was taken over by" if fenced else "the lease is held by"
    of = f"pipeline {pipeline!r}, {scope}" if scope else f"pipeline {pipeline!r}"
    begun = "this driver wrote nothing after that; what it committed before is in the ledger"
    return LeaseHeldError(
        f"{of}: {what} {who}",
        state=begun if fenced else "nothing was read or written",
        next_step=f"try again when that run has ended; the lease of a dead driver expires within "
        f"{max(1, round(remaining))} s",
    )
