"""The ledger: records events and has the queries. An event and its effect on derived tables are one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from sluice.home import Home
from sluice.ledger import schema
from sluice.ledger.events import Event, IntervalResolved, PipelineAdopted
from sluice.ledger.facts import Facts
from sluice.ledger.lease import Lease
from sluice.ledger.offsets import Offsets
from sluice.ledger.profiles import Profiles
from sluice.ledger.projection import project, rebuild
from sluice.ledger.runs import Runs
from sluice.ledger.store import LedgerError, Queries, open_engine, spoken
from sluice.ledger.verdicts import Verdicts
from sluice.ranges import OffsetRange
from sluice.text import checked_run

__all__ = ["Ledger"]


class Ledger(Queries):
    """The account of runs. Open it with :meth:`open`; several processes may use it.

    Notes
    -----
    Writing needs the pipeline's lease and checks its token in the same transaction, so a fenced driver cannot record
    anything. Recording is idempotent: a batch that is recorded again after a crash changes nothing.

    Attributes
    ----------
    runs
        Which runs there are, what each planned, and its account.
    offsets
        How offsets were split, which are lost, how far each partition was read.
    facts
        What batches did beside moving records.
    verdicts
        Verdicts, and what users decided on them.
    profiles
        What the rows of runs looked like.
    """

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self.runs, self.offsets, self.facts = Runs(engine), Offsets(engine), Facts(engine)
        self.verdicts, self.profiles = Verdicts(engine), Profiles(engine)

    @classmethod
    def open(cls, url: str | None = None) -> Ledger:
        """Open the ledger at ``url``, by default the one of ``SLUICE_LEDGER_URL`` or ``SLUICE_HOME``.

        Raises
        ------
        LedgerError
            If the database does not answer.
        """
        return cls(open_engine(url or Home.from_env().ledger_url))

    def acquire(self, pipeline: str, run_id: str, *, scope: str = "") -> Lease:
        """Take the lease of a pipeline, or of a scope of it; see :meth:`Lease.acquire`.

        Raises
        ------
        ConfigError
            If ``run`` is not a valid run id.
        """
        checked_run(run_id)
        with spoken():
            try:
                return Lease.acquire(self._engine, pipeline, run_id, scope=scope)
            except IntegrityError:  # two first drivers at once: the other one's row exists now
                return Lease.acquire(self._engine, pipeline, run_id, scope=scope)

    def events(self, pipeline: str, run_id: str | None = None, limit: int = 200) -> list[dict[str, Any]]:
        """Return the newest events, oldest first."""
        table = schema.event
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if run_id is not None:
            query = query.where(table.c.run == run_id)
        return [dict(r) for r in reversed(self._rows(query.order_by(table.c.id.desc()).limit(limit)))]

    def record(self, lease: Lease, *events: Event, run_id: str | None = None) -> None:
        """Record events of the lease's run, and apply them to the derived tables, in one transaction.

        Parameters
        ----------
        run_id
            The id of the run whose events they are, if it is another one (reconciling).

        Raises
        ------
        LeaseHeldError
            If another driver took over; nothing was recorded.
        LedgerError
            If the database does not answer; nothing was recorded.
        """
        own = lease.holder.run
        on_behalf = {} if run_id in (None, own) else {"reconciled_by": own}
        with spoken(), self._engine.begin() as connection:
            lease.verify(connection)
            for event in events:
                _insert(connection, lease.pipeline, run_id or own, event, on_behalf)

    def decide(self, pipeline: str, run_id: str, event: Event) -> None:
        """Record an event that changes no data, such as a verdict: it needs no lease."""
        with spoken(), self._engine.begin() as connection:
            _insert(connection, pipeline, run_id, event)

    def interval_resolved(
        self,
        lease: Lease,
        interval: str,
        *,
        ranges: Sequence[OffsetRange],
        whole: bool,
        topic_ids: Mapping[str, str],
    ) -> int:
        """Record the offsets that an interval of record time was resolved to; return the interval's number.

        Parameters
        ----------
        whole
            As of :class:`~sluice.ledger.events.IntervalResolved`.
        """
        name = lease.pipeline
        known = [row.number for row in self.offsets.intervals(name, interval)]
        for _ in range(20):
            number = known[0] if known else 1 + max(self.offsets.interval_keys(name), default=0)
            resolved = IntervalResolved(
                number=number, interval=interval, ranges=ranges, whole=whole, topic_ids=topic_ids
            )  # fmt: skip
            try:
                self.record(lease, resolved)
            except LedgerError as error:
                # another interval took the number meanwhile
                if not isinstance(error.__cause__, IntegrityError):
                    raise
                continue
            return number
        raise LedgerError(f"no number is free for the interval {interval} of {name!r}")

    def adopted(self, lease: Lease, old: str) -> None:
        """Transfer all records of the pipeline ``old`` to this one, and record the transfer, in one transaction."""
        with spoken(), self._engine.begin() as connection:
            lease.verify(connection)
            for table in (*schema.DERIVED, schema.event):
                # nothing was committed under the new name: it has refused runs at most
                connection.execute(table.delete().where(table.c.pipeline == lease.pipeline))
                connection.execute(table.update().where(table.c.pipeline == old).values(pipeline=lease.pipeline))
            _insert(connection, lease.pipeline, lease.holder.run, PipelineAdopted(former=old))

    def drop_empty(self, lease: Lease, before: datetime) -> int:
        """Remove the live runs that found nothing and ended before a time; return how many.

        No account has them: they planned no records, and neither changed nor noted anything. All other runs stay for
        good.
        """
        run, event = schema.run, schema.event
        of_run = (event.c.pipeline == run.c.pipeline, event.c.run == run.c.run)
        found = sa.select(run.c.run).where(
            run.c.pipeline == lease.pipeline,
            run.c.kind == "live",
            run.c.state == "done",
            run.c.verdict == "empty",
            run.c.closed_at < before.isoformat(timespec="milliseconds"),
            ~sa.exists().where(*of_run, event.c.type.not_in(["RunPlanned", "Judged", "RunClosed"])),
        )
        with spoken(), self._engine.begin() as connection:
            lease.verify(connection)
            names = list(connection.execute(found).scalars())
            for at in range(0, len(names), 500):
                some = names[at : at + 500]
                for table in (event, run):
                    connection.execute(table.delete().where(table.c.pipeline == lease.pipeline, table.c.run.in_(some)))
        return len(names)

    def rebuild(self) -> int:
        """Recreate the derived tables from the events; return the number of events."""
        with spoken(), self._engine.begin() as connection:
            return rebuild(connection)


def _insert(
    connection: sa.Connection, pipeline: str, run_id: str, event: Event, more: Mapping[str, Any] | None = None
) -> None:
    payload = {**event.payload(), **(more or {})}
    row = {"at": _now(), "type": event.type, "pipeline": pipeline, "run": run_id, "payload": payload}
    key = connection.execute(schema.event.insert().values(**row)).inserted_primary_key
    project(connection, {**row, "id": int(key[0]) if key else 0})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
