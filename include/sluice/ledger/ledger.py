"""Writes events and answers questions. Each event and its effect on the derived tables are one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from sluice.home import Home
from sluice.ledger import schema
from sluice.ledger.lease import Lease
from sluice.ledger.store import LedgerError, open_engine
from sluice.ranges import Counts, RangeAccount

__all__ = ["BatchRow", "Ledger", "RunRow"]


@dataclass(frozen=True)
class RunRow:
    """One run, as the ledger knows it. Times are ISO 8601 in UTC."""

    pipeline: str
    run: str
    kind: str
    recovery: str
    epoch: int
    state: str
    attempts: int
    opened_at: str
    closed_at: str | None
    seconds: float | None
    verdict: str | None
    judgement: dict[str, Any] | None
    error: dict[str, Any] | None
    topic_ids: dict[str, str]
    sequence: int


@dataclass(frozen=True)
class BatchRow:
    """One batch: ``started`` or ``committed``, and the run that wrote it last."""

    pipeline: str
    epoch: int
    batch: int
    run: str
    state: str
    at: str


class Ledger:
    """The account of runs. Open it with :meth:`open`; safe to share between processes.

    Notes
    -----
    Writing asks for the pipeline's lease and checks its token in the same transaction, so a driver that was fenced
    leaves no trace here. Recording the same fact twice (a batch that is committed again after a crash) changes nothing.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str | None = None) -> Ledger:
        """Open the ledger at ``url``, by default the one of ``SLUICE_LEDGER_URL`` or ``SLUICE_HOME``.

        Raises
        ------
        LedgerError
            When the database does not answer.
        """
        return cls(open_engine(url or Home.from_env().ledger_url))

    def acquire(self, pipeline: str, run: str) -> Lease:
        """Take the lease of a pipeline; see :meth:`Lease.acquire`."""
        with _spoken():
            try:
                return Lease.acquire(self._engine, pipeline, run)
            except IntegrityError:  # two first drivers at once: the other one's row is there now
                return Lease.acquire(self._engine, pipeline, run)

    # --- events ------------------------------------------------------------------------------------------------

    def run_planned(
        self, lease: Lease, *, kind: str, recovery: str, epoch: int, ranges: Sequence[Any], topic_ids: Mapping[str, str]
    ) -> None:
        """Record that a run begins (or begins again: the same run id is another attempt)."""
        payload = {
            "kind": kind,
            "recovery": recovery,
            "epoch": epoch,
            "ranges": [[r.topic, r.partition, r.start, r.end] for r in ranges],
            "topic_ids": dict(topic_ids),
            "token": lease.token,
        }
        self._record(lease, "RunPlanned", lease.holder.run, payload)

    def batch_started(self, lease: Lease, *, epoch: int, batch: int, ranges: Sequence[Any]) -> None:
        """Record that a batch with these ranges is being processed."""
        payload = {
            "epoch": epoch,
            "batch": batch,
            "ranges": [[r.topic, r.partition, r.start, r.end] for r in ranges],
        }
        self._record(lease, "BatchStarted", lease.holder.run, payload)

    def batch_committed(
        self, lease: Lease, *, epoch: int, batch: int, accounts: Sequence[RangeAccount], run: str | None = None
    ) -> None:
        """Record the split of a batch that the sink holds. ``run`` names another run that wrote it (reconciling)."""
        payload = {"epoch": epoch, "batch": batch, "accounts": [a.as_dict() for a in accounts]}
        if run is not None:
            payload["reconciled_by"] = lease.holder.run
        self._record(lease, "BatchCommitted", run or lease.holder.run, payload)

    def judged(
        self, lease: Lease | None, pipeline: str, run: str, *, verdict: str, judgement: Mapping[str, Any]
    ) -> None:
        """Record a verdict. Judging again needs no lease: it changes no data."""
        self._record(lease, "Judged", run, {"verdict": verdict, "judgement": dict(judgement)}, pipeline)

    def run_closed(
        self,
        lease: Lease,
        *,
        state: str,
        seconds: float | None = None,
        verdict: str | None = None,
        error: Mapping[str, Any] | None = None,
        run: str | None = None,
    ) -> None:
        """Record how a run ended: ``done``, ``failed``, or ``abandoned`` (its driver died; a later run says so)."""
        payload = {"state": state, "seconds": seconds, "verdict": verdict, "error": dict(error) if error else None}
        self._record(lease, "RunClosed", run or lease.holder.run, payload)

    def _record(
        self, lease: Lease | None, kind: str, run: str, payload: dict[str, Any], pipeline: str | None = None
    ) -> None:
        name = lease.pipeline if lease else pipeline
        with _spoken(), self._engine.begin() as connection:
            if lease is not None:
                lease.verify(connection)
            row = {"at": _now(), "type": kind, "pipeline": name, "run": run, "payload": payload}
            result = connection.execute(schema.event.insert().values(**row))
            key = result.inserted_primary_key
            _project(connection, {**row, "id": int(key[0]) if key else 0})

    def rebuild(self) -> int:
        """Make every derived table anew from the events; return how many events there were."""
        with _spoken(), self._engine.begin() as connection:
            for table in schema.DERIVED:
                connection.execute(table.delete())
            events = connection.execute(sa.select(schema.event).order_by(schema.event.c.id)).mappings().all()
            for row in events:
                _project(connection, dict(row))
            return len(events)

    # --- questions ---------------------------------------------------------------------------------------------

    def events(self, pipeline: str, run: str | None = None, limit: int = 200) -> list[dict[str, Any]]:
        """Return the newest events, oldest first."""
        table = schema.event
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if run is not None:
            query = query.where(table.c.run == run)
        return [dict(r) for r in reversed(self._rows(query.order_by(table.c.id.desc()).limit(limit)))]

    def run(self, pipeline: str, run: str) -> RunRow | None:
        """Return one run."""
        table = schema.run
        rows = self._rows(sa.select(table).where(table.c.pipeline == pipeline, table.c.run == run))
        return RunRow(**rows[0]) if rows else None

    def runs(self, pipeline: str | None = None, *, state: str | None = None, limit: int = 20) -> list[RunRow]:
        """Return the newest runs, newest first."""
        table = schema.run
        query = sa.select(table).order_by(table.c.sequence.desc()).limit(limit)
        if pipeline is not None:
            query = query.where(table.c.pipeline == pipeline)
        if state is not None:
            query = query.where(table.c.state == state)
        return [RunRow(**r) for r in self._rows(query)]

    def topic_ids(self, pipeline: str) -> dict[str, str]:
        """Return the topics' ids as the last run that planned anything saw them."""
        rows = self.runs(pipeline, limit=1)
        return rows[0].topic_ids if rows else {}

    def epoch(self, pipeline: str) -> int:
        """Return the newest epoch; 1 for a pipeline that never ran."""
        rows = self._rows(
            sa.select(sa.func.max(schema.run.c.epoch).label("epoch")).where(schema.run.c.pipeline == pipeline)
        )
        return int(rows[0]["epoch"] or 1)

    def last_batch(self, pipeline: str, epoch: int) -> BatchRow | None:
        """Return the newest committed batch of an epoch."""
        table = schema.batch
        query = sa.select(table).where(
            table.c.pipeline == pipeline, table.c.epoch == epoch, table.c.state == "committed"
        )
        rows = self._rows(query.order_by(table.c.batch.desc()).limit(1))
        return BatchRow(**rows[0]) if rows else None

    def unjudged(self, pipeline: str) -> list[str]:
        """Return abandoned runs whose committed rows no verdict covers yet, oldest first."""
        table, parts = schema.run, schema.account
        has_rows = sa.exists().where(parts.c.pipeline == table.c.pipeline, parts.c.run == table.c.run)
        query = sa.select(table.c.run).where(
            table.c.pipeline == pipeline, table.c.state == "abandoned", table.c.verdict.is_(None), has_rows
        )
        return [r["run"] for r in self._rows(query.order_by(table.c.sequence))]

    def accounts(self, pipeline: str, run: str | None = None, *, batch: BatchRow | None = None) -> list[RangeAccount]:
        """Return the split ranges of one run, of one batch, or of all runs, in the order of offsets."""
        table = schema.account
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if run is not None:
            query = query.where(table.c.run == run)
        if batch is not None:
            query = query.where(table.c.epoch == batch.epoch, table.c.batch == batch.batch)
        rows = self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start))
        return [RangeAccount.from_dict(r) for r in rows]

    def account(self, pipeline: str, run: str) -> dict[str, Any]:
        """Return a run's account: one element of ``runs`` in the JSON that commands print.

        Raises
        ------
        KeyError
            When the ledger has no such run.
        """
        row = self.run(pipeline, run)
        if row is None:
            raise KeyError(f"{pipeline}: no run {run!r}")
        counts = sum((a.counts for a in self.accounts(pipeline, run)), Counts())
        return {
            "run": run,
            "recovery": row.recovery,
            **counts.as_dict(),
            "verdict": row.verdict,
            "seconds": row.seconds,
        }

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with _spoken(), self._engine.connect() as connection:
            return connection.execute(query).mappings().all()


@contextmanager
def _spoken() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise LedgerError(
            f"the ledger does not answer: {getattr(error, 'orig', None) or error}",
            state="nothing was committed that the ledger does not know; a batch that the sink took is reconciled later",
            next_step="mend the database, then run again",
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _project(connection: sa.Connection, event: Mapping[str, Any]) -> None:
    """Apply one event to the derived tables; the only place where they change."""
    payload = event["payload"]
    who = {"pipeline": event["pipeline"], "run": event["run"]}
    runs = schema.run
    this_run = sa.and_(runs.c.pipeline == event["pipeline"], runs.c.run == event["run"])
    match event["type"]:
        case "RunPlanned":
            again = {
                "state": "open", "recovery": payload["recovery"], "epoch": payload["epoch"],
                "topic_ids": payload["topic_ids"], "closed_at": None, "error": sa.null(),
            }  # fmt: skip
            updated = connection.execute(runs.update().where(this_run).values(attempts=runs.c.attempts + 1, **again))
            if updated.rowcount == 0:
                connection.execute(
                    runs.insert().values(
                        **who, **again, kind=payload["kind"], attempts=1, opened_at=event["at"], sequence=event["id"]
                    )
                )
        case "BatchStarted":
            _put_batch(connection, event, "started")
        case "BatchCommitted":
            _put_batch(connection, event, "committed")
            key = {"pipeline": event["pipeline"], "epoch": payload["epoch"], "batch": payload["batch"]}
            table = schema.account
            connection.execute(table.delete().where(*(table.c[k] == v for k, v in key.items())))
            if payload["accounts"]:
                connection.execute(table.insert(), [{**key, "run": event["run"], **a} for a in payload["accounts"]])
        case "Judged":
            connection.execute(
                runs.update().where(this_run).values(verdict=payload["verdict"], judgement=payload["judgement"])
            )
        case "RunClosed":
            values = {"state": payload["state"], "closed_at": event["at"], "error": payload["error"] or sa.null()}
            if payload["seconds"] is not None:
                values["seconds"] = payload["seconds"]
            if payload["verdict"] is not None:
                values["verdict"] = payload["verdict"]
            connection.execute(runs.update().where(this_run).values(**values))


def _put_batch(connection: sa.Connection, event: Mapping[str, Any], state: str) -> None:
    table, payload = schema.batch, event["payload"]
    key = {"pipeline": event["pipeline"], "epoch": payload["epoch"], "batch": payload["batch"]}
    values = {"run": event["run"], "state": state, "at": event["at"]}
    updated = connection.execute(table.update().where(*(table.c[k] == v for k, v in key.items())).values(**values))
    if updated.rowcount == 0:
        connection.execute(table.insert().values(**key, **values))
