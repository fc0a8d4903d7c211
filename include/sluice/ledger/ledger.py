"""Writes events and answers questions. Each event and its effect on the derived tables are one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from sluice.home import Home
from sluice.ledger import schema
from sluice.ledger.lease import Lease
from sluice.ledger.projection import project, rebuild
from sluice.ledger.rows import BatchRow, Epoch, IntervalRow, LostRow, RunRow
from sluice.ledger.store import LedgerError, open_engine, spoken
from sluice.ranges import Counts, LostRange, OffsetRange, Positions, RangeAccount
from sluice.recovery import Lineage

__all__ = ["REDRIVEN", "Ledger"]

REDRIVEN = 0
"""The epoch of what was redriven: live epochs count from 1 upwards, intervals from -1 downwards."""


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

    def acquire(self, pipeline: str, run: str, *, scope: str = "") -> Lease:
        """Take the lease of a pipeline, or of a scope of it; see :meth:`Lease.acquire`."""
        with spoken():
            try:
                return Lease.acquire(self._engine, pipeline, run, scope=scope)
            except IntegrityError:  # two first drivers at once: the other one's row is there now
                return Lease.acquire(self._engine, pipeline, run, scope=scope)

    # --- events ------------------------------------------------------------------------------------------------

    def run_planned(
        self,
        lease: Lease,
        *,
        kind: str,
        recovery: str,
        epoch: int,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        interval: str | None = None,
        reason: str | None = None,
        sources: Mapping[str, Sequence[OffsetRange]] | None = None,
    ) -> None:
        """Record that a run begins (or begins again: the same run id is another attempt).

        Parameters
        ----------
        interval
            For a run of an interval: :attr:`sluice.interval.Interval.key`.
        reason
            Why somebody asked for it.
        sources
            What is read from where, if not all from Kafka.
        """
        payload = {
            "kind": kind,
            "recovery": recovery,
            "epoch": epoch,
            "ranges": _plain(ranges),
            "topic_ids": dict(topic_ids),
            "token": lease.token,
            "interval": interval,
            "reason": reason,
            **({"sources": {name: _plain(parts) for name, parts in sources.items()}} if sources else {}),
        }
        self._record(lease, None, ("RunPlanned", payload))

    def interval_resolved(
        self,
        lease: Lease,
        interval: str,
        *,
        ranges: Sequence[OffsetRange],
        whole: bool,
        topic_ids: Mapping[str, str],
    ) -> int:
        """Record which offsets an interval of record time is; return its number.

        Parameters
        ----------
        whole
            Both ends are final; otherwise a later run may find that it reaches further.
        """
        known = self.interval(lease.pipeline, interval)
        for _ in range(20):
            number = known.number if known else 1 + max((i.number for i in self.intervals(lease.pipeline)), default=0)
            payload = {
                "number": number, "interval": interval, "ranges": _plain(ranges), "whole": whole,
                "topic_ids": dict(topic_ids),
            }  # fmt: skip
            try:
                self._record(lease, None, ("IntervalResolved", payload))
            except LedgerError as error:
                # another interval took the number just now
                if not isinstance(error.__cause__, IntegrityError):
                    raise
                continue
            return number
        raise LedgerError(f"no number is free for the interval {interval} of {lease.pipeline!r}")

    def epoch_opened(
        self, lease: Lease, *, epoch: int, lineage: Lineage, positions: Positions | None, run: str | None = None
    ) -> None:
        """Record that an epoch begins at these positions. The same number again changes its lineage: nothing was
        committed under the old one."""
        payload = {"epoch": epoch, "lineage": lineage.value, "positions": positions}
        self._record(lease, run, ("EpochOpened", payload))

    def degraded(self, lease: Lease, note: str) -> None:
        """Record, in words, that a run goes on with less than its strategy promises."""
        self._record(lease, None, ("Degraded", {"note": note}))

    def segment_sealed(
        self, lease: Lease, *, epoch: int, batch: int, segments: Sequence[Mapping[str, Any]], run: str | None = None
    ) -> None:
        """Record the segments of a batch that the write-ahead log holds; see :class:`sluice.wal.Segment`."""
        payload = {
            "epoch": epoch, "batch": batch, "segments": [dict(s) for s in segments],
            "records": sum(s["records"] for s in segments), "bytes": sum(s["length"] for s in segments),
        }  # fmt: skip
        self._record(lease, run, ("SegmentSealed", payload))

    def segments_cleaned(self, lease: Lease, payload: Mapping[str, Any]) -> None:
        """Record what was removed from the write-ahead log, and what it still holds of each batch."""
        self._record(lease, None, ("SegmentsCleaned", dict(payload)))

    def batch_started(self, lease: Lease, *, epoch: int, batch: int, ranges: Sequence[OffsetRange]) -> None:
        """Record that a batch with these ranges is being processed."""
        payload = {"epoch": epoch, "batch": batch, "ranges": _plain(ranges)}
        self._record(lease, None, ("BatchStarted", payload))

    def batch_committed(
        self,
        lease: Lease,
        *,
        epoch: int,
        batch: int,
        accounts: Sequence[RangeAccount],
        lost: Sequence[LostRange] = (),
        redriven: str | None = None,
        source: Mapping[str, Any] | None = None,
        replaced: Mapping[OffsetRange, tuple[int, int]] | None = None,
        run: str | None = None,
    ) -> None:
        """Record the split of a batch that the sink holds, with what it lost or redrove; all or nothing.

        Parameters
        ----------
        lost
            The ranges that the accounts count as lost.
        redriven
            ``lost`` or ``quarantined``: what these ranges were before; None for a batch of a live run.
        source
            Where redriven records came from.
        replaced
            For an interval, per range: how many offsets its commits took out of the sink and of the quarantine.
        run
            Another run that wrote it (reconciling).
        """
        payload: dict[str, Any] = {"epoch": epoch, "batch": batch, "accounts": [a.as_dict() for a in accounts]}
        for account, item in zip(accounts, payload["accounts"], strict=True) if replaced else ():
            item["replaced"], item["replaced_quarantined"] = replaced[account.range] if replaced else (0, 0)
        if run is not None:
            payload["reconciled_by"] = lease.holder.run
        events: list[tuple[str, dict[str, Any]]] = []
        key = {"epoch": epoch, "batch": batch}
        if lost:
            events.append(("RangeLost", {**key, "ranges": [item.as_dict() for item in lost]}))
        if redriven is not None:
            payload["accounts"] = [{**a, "of": redriven} for a in payload["accounts"]]
            ranges = _plain(a.range for a in accounts)
            events.append(("RangeRedriven", {**key, "of": redriven, "ranges": ranges, "source": dict(source or {})}))
        self._record(lease, run, *events, ("BatchCommitted", payload))

    def judged(
        self, lease: Lease | None, pipeline: str, run: str, *, verdict: str, judgement: Mapping[str, Any]
    ) -> None:
        """Record a verdict. Judging again needs no lease: it changes no data."""
        payload = {"verdict": verdict, "judgement": dict(judgement)}
        self._record(lease, run, ("Judged", payload), pipeline=pipeline)

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
        self._record(lease, run, ("RunClosed", payload))

    def _record(
        self,
        lease: Lease | None,
        run: str | None,
        *events: tuple[str, dict[str, Any]],
        pipeline: str | None = None,
    ) -> None:
        with spoken(), self._engine.begin() as connection:
            if lease is not None:
                lease.verify(connection)
                pipeline, run = lease.pipeline, run or lease.holder.run
            for kind, payload in events:
                row = {"at": _now(), "type": kind, "pipeline": pipeline, "run": run, "payload": payload}
                key = connection.execute(schema.event.insert().values(**row)).inserted_primary_key
                project(connection, {**row, "id": int(key[0]) if key else 0})

    def rebuild(self) -> int:
        """Make every derived table anew from the events; return how many events there were."""
        with spoken(), self._engine.begin() as connection:
            return rebuild(connection)

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

    def past(self, pipeline: str, *, limit: int) -> list[tuple[RunRow, list[OffsetRange], list[OffsetRange]]]:
        """Return the newest closed live runs, newest first, with the ranges that each planned and committed."""
        table, events, parts = schema.run, schema.event, schema.account
        closed = sa.select(table).where(
            table.c.pipeline == pipeline, table.c.kind == "live", table.c.state.in_(["done", "failed", "abandoned"])
        )
        runs = [RunRow(**r) for r in self._rows(closed.order_by(table.c.sequence.desc()).limit(limit))]
        names = [r.run for r in runs]
        plans = sa.select(events.c.run, events.c.payload).where(
            events.c.pipeline == pipeline, events.c.run.in_(names), events.c.type == "RunPlanned"
        )
        planned = {
            r["run"]: [OffsetRange(*span) for span in r["payload"]["ranges"]]
            for r in self._rows(plans.order_by(events.c.id))
        }  # of several attempts the newest
        span = (parts.c.run, parts.c.topic, parts.c.partition)
        accounts = sa.select(*span, sa.func.min(parts.c.start).label("start"), sa.func.max(parts.c.end).label("end"))
        committed: dict[str, list[OffsetRange]] = {name: [] for name in names}
        for r in self._rows(
            accounts.where(parts.c.pipeline == pipeline, parts.c.run.in_(names)).group_by(*span)
        ):  # fmt: skip
            committed[r["run"]].append(OffsetRange(r["topic"], r["partition"], r["start"], r["end"]))
        return [(run, planned.get(run.run, []), committed[run.run]) for run in runs]

    def furthest(self, pipeline: str, epoch: int, *, batches: int = 100) -> Positions:
        """Return where an epoch's newest committed batches end, for the partitions that they read."""
        last, table = self.last_batch(pipeline, epoch), schema.account
        if last is None:
            return {}
        query = sa.select(table.c.topic, table.c.partition, sa.func.max(table.c.end).label("end")).where(
            table.c.pipeline == pipeline, table.c.epoch == epoch, table.c.batch > last.batch - batches
        )
        ends: Positions = {}
        for r in self._rows(query.group_by(table.c.topic, table.c.partition)):
            ends.setdefault(r["topic"], {})[int(r["partition"])] = int(r["end"])
        return ends

    def reached(self, pipeline: str) -> Positions:
        """Return the live pipeline's committed position, as far as it is accounted for."""
        table, ends = schema.account, Positions()
        query = sa.select(table.c.topic, table.c.partition, sa.func.max(table.c.end).label("end")).where(
            table.c.pipeline == pipeline, table.c.epoch > REDRIVEN
        )
        for r in self._rows(query.group_by(table.c.topic, table.c.partition)):
            ends.setdefault(r["topic"], {})[int(r["partition"])] = int(r["end"])
        return ends

    def running(self, pipeline: str) -> str | None:
        """Return the run whose driver holds the pipeline's lease and may be alive; None when there is none."""
        return self.at_work(pipeline).get("")

    def at_work(self, pipeline: str) -> dict[str, str]:
        """Return by scope the runs whose drivers hold a lease of the pipeline and may be alive; see :class:`Lease`."""
        with spoken():
            holders = Lease.holders(self._engine, pipeline)
        return {scope: holder.run for scope, holder in holders.items()}

    def interval(self, pipeline: str, interval: str) -> IntervalRow | None:
        """Return an interval by its key, if it was ever resolved."""
        return next((row for row in self.intervals(pipeline, interval)), None)

    def intervals(self, pipeline: str, interval: str | None = None) -> list[IntervalRow]:
        """Return the intervals that were resolved, by their numbers."""
        table = schema.interval
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if interval is not None:
            query = query.where(table.c.interval == interval)
        return [
            IntervalRow(
                r["number"], r["interval"], [OffsetRange(*span) for span in r["ranges"]], r["whole"], r["topic_ids"],
                r["run"], r["at"],
            )
            for r in self._rows(query.order_by(table.c.number))
        ]  # fmt: skip

    def replaced(self, pipeline: str) -> list[tuple[int, RangeAccount, tuple[int, int]]]:
        """Return every split that an interval's commit made: its number, and what it took out of the two tables."""
        table = schema.account
        query = sa.select(table).where(table.c.pipeline == pipeline, table.c.epoch < REDRIVEN)
        rows = self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start, table.c.batch))
        return [
            (-r["epoch"], RangeAccount.from_dict(r), (r["replaced"], r["replaced_quarantined"]))
            for r in rows
        ]  # fmt: skip

    def epoch(self, pipeline: str) -> Epoch:
        """Return the newest epoch; the first, direct one for a pipeline that never ran."""
        table = schema.epoch
        query = sa.select(table).where(table.c.pipeline == pipeline).order_by(table.c.epoch.desc()).limit(1)
        for row in self._rows(query):
            positions = row["positions"]
            if positions is not None:
                positions = {t: {int(p): int(o) for p, o in parts.items()} for t, parts in positions.items()}
            return Epoch(int(row["epoch"]), Lineage(row["lineage"]), positions)
        return Epoch(1, Lineage.DIRECT, None)

    def last_sealed(self, pipeline: str, epoch: int) -> int:
        """Return the newest batch of an epoch that the write-ahead log holds; -1 for none."""
        table = schema.sealed
        query = sa.select(sa.func.max(table.c.batch).label("batch"))
        rows = self._rows(query.where(table.c.pipeline == pipeline, table.c.epoch == epoch))
        return -1 if rows[0]["batch"] is None else int(rows[0]["batch"])

    def lost(self, pipeline: str, *, state: str | None = "open", run: str | None = None) -> list[LostRow]:
        """Return lost ranges in the order of offsets: those still open, or all of them (``state=None``)."""
        table = schema.lost
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if state is not None:
            query = query.where(table.c.state == state)
        if run is not None:
            query = query.where(table.c.run == run)
        names = ("epoch", "batch", "run", "at", "reason", "sample", "state", "redriven_by")
        return [
            LostRow(OffsetRange(r["topic"], r["partition"], r["start"], r["end"]), **{n: r[n] for n in names})
            for r in self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start))
        ]

    def redriven(self, pipeline: str) -> list[tuple[RangeAccount, str]]:
        """Return the split of each redriven range, with what it was before: ``lost`` or ``quarantined``."""
        table = schema.account
        query = sa.select(table).where(table.c.pipeline == pipeline, table.c.epoch == REDRIVEN)
        rows = self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start))
        return [(RangeAccount.from_dict(r), r["of"]) for r in rows]

    def last_batch(self, pipeline: str, epoch: int) -> BatchRow | None:
        """Return the newest committed batch of an epoch."""
        table = schema.batch
        query = sa.select(table).where(
            table.c.pipeline == pipeline, table.c.epoch == epoch, table.c.state == "committed"
        )
        rows = self._rows(query.order_by(table.c.batch.desc()).limit(1))
        return BatchRow(**rows[0]) if rows else None

    def last_batches(self, pipeline: str) -> dict[int, int]:
        """Return by epoch the number of its newest committed batch."""
        table = schema.batch
        query = sa.select(table.c.epoch, sa.func.max(table.c.batch).label("last"))
        query = query.where(table.c.pipeline == pipeline, table.c.state == "committed").group_by(table.c.epoch)
        return {int(r["epoch"]): int(r["last"]) for r in self._rows(query)}

    def unjudged(self, pipeline: str) -> list[str]:
        """Return runs that died or failed and whose committed rows no verdict covers yet, oldest first."""
        table, parts = schema.run, schema.account
        has_rows = sa.exists().where(parts.c.pipeline == table.c.pipeline, parts.c.run == table.c.run)
        query = sa.select(table.c.run).where(
            table.c.pipeline == pipeline,
            table.c.state.in_(("abandoned", "failed")),
            table.c.verdict.is_(None),
            has_rows,
        )
        return [r["run"] for r in self._rows(query.order_by(table.c.sequence))]

    def accounts(self, pipeline: str, run: str | None = None, *, batch: BatchRow | None = None) -> list[RangeAccount]:
        """Return the split ranges of one run, of one batch, or of all live runs, in the order of offsets.

        Of an interval that the same run replaced several times only the last split counts.
        """
        table = schema.account
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if run is not None:
            same = table.alias()
            last = sa.select(sa.func.max(same.c.batch)).where(
                same.c.pipeline == pipeline, same.c.run == run, same.c.epoch == table.c.epoch
            )
            query = query.where(
                table.c.run == run, sa.or_(table.c.epoch >= REDRIVEN, table.c.batch == last.scalar_subquery())
            )
        elif batch is None:
            query = query.where(table.c.epoch > REDRIVEN)
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
            **({"interval": row.interval, "replaced": self._taken(pipeline, run)} if row.interval else {}),
            **({"reason": row.reason} if row.reason else {}),
            **({"notes": row.notes} if row.notes else {}),
        }

    def _taken(self, pipeline: str, run: str) -> int:
        """Return how many offsets the last commit of an interval's run took out of the sink."""
        table = schema.account
        query = sa.select(table.c.batch, sa.func.sum(table.c.replaced).label("replaced")).where(
            table.c.pipeline == pipeline, table.c.run == run, table.c.epoch < REDRIVEN
        )
        rows = self._rows(query.group_by(table.c.batch).order_by(table.c.batch.desc()).limit(1))
        return int(rows[0]["replaced"]) if rows else 0

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with spoken(), self._engine.connect() as connection:
            return connection.execute(query).mappings().all()


def _plain(ranges: Iterable[OffsetRange]) -> list[list[Any]]:
    return [[r.topic, r.partition, r.start, r.end] for r in ranges]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
