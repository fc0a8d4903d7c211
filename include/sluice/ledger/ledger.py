"""Writes events. Each event and its effect on the derived tables are one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.exc import IntegrityError

from sluice.home import Home
from sluice.ledger import schema
from sluice.ledger.lease import Lease
from sluice.ledger.plain import plain
from sluice.ledger.projection import project, rebuild
from sluice.ledger.queries import Questions
from sluice.ledger.store import LedgerError, open_engine, spoken
from sluice.ranges import LostRange, OffsetRange, Positions, RangeAccount, Times
from sluice.recovery import Route
from sluice.text import checked_run, storable

__all__ = ["Ledger"]


class Ledger(Questions):
    """The account of runs. Open it with :meth:`open`; safe to share between processes.

    Notes
    -----
    Writing asks for the pipeline's lease and checks its token in the same transaction, so a driver that was fenced
    leaves no trace here. Recording the same fact twice (a batch that is committed again after a crash) changes nothing.
    """

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
        """Take the lease of a pipeline, or of a scope of it; see :meth:`Lease.acquire`.

        Raises
        ------
        ConfigError
            When ``run`` cannot be a run's id.
        """
        checked_run(run)
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
            For a run of an interval: :attr:`sluice.run.interval.Interval.key`.
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

    def times_found(self, lease: Lease, times: Sequence[Times]) -> None:
        """Record between which times the records of ranges lie, where no batch's account says it."""
        spans = [[t.range.topic, t.range.partition, t.range.start, t.range.end, t.first, t.last] for t in times]
        self._record(lease, None, ("TimesFound", {"times": spans}))

    def epoch_opened(
        self, lease: Lease, *, epoch: int, route: Route, positions: Positions | None, run: str | None = None
    ) -> None:
        """Record that an epoch begins at these positions. The same number again changes its route: nothing was
        committed under the old one."""
        payload = {"epoch": epoch, "lineage": route.value, "positions": positions}
        self._record(lease, run, ("EpochOpened", payload))

    def degraded(self, lease: Lease, note: str, *, run: str | None = None) -> None:
        """Record, in words, that a run, or another one that is entered now, goes on with less than it promises."""
        self._record(lease, run, ("Degraded", {"note": note}))

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

    def adopted(self, lease: Lease, old: str) -> None:
        """Give all that is on record of another pipeline to this one, in one transaction, and record that."""
        with spoken(), self._engine.begin() as connection:
            lease.verify(connection)
            for table in (*schema.DERIVED, schema.event):
                # under the new name nothing was committed: runs that were refused are all that there may be
                connection.execute(table.delete().where(table.c.pipeline == lease.pipeline))
                connection.execute(table.update().where(table.c.pipeline == old).values(pipeline=lease.pipeline))
            connection.execute(
                schema.event.insert().values(
                    at=_now(),
                    type="PipelineAdopted",
                    pipeline=lease.pipeline,
                    run=lease.holder.run,
                    payload={"from": old},
                )
            )

    def judged(
        self, lease: Lease | None, pipeline: str, run: str, *, verdict: str, judgement: Mapping[str, Any]
    ) -> None:
        """Record a verdict. Judging again needs no lease: it changes no data.

        What was observed is stored as :func:`~sluice.ledger.plain.plain` writes it.
        """
        payload = {"verdict": verdict, "judgement": plain(dict(judgement))}
        self._record(lease, run, ("Judged", payload), pipeline=pipeline)

    def announced(self, pipeline: str, run: str, *, upto: Mapping[int, int], version: int | None) -> None:
        """Record that a run's asset event was sent. It needs no lease: it changes no data.

        Parameters
        ----------
        upto
            By epoch the newest batch that the event told of; it told of all before it, too.
        version
            The version of the sink's table that the event named.
        """
        payload = {"upto": sorted([epoch, batch] for epoch, batch in upto.items()), "version": version}
        self._record(None, run, ("Announced", payload), pipeline=pipeline)

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
            for kind, told in events:
                payload = storable(told)
                row = {"at": _now(), "type": kind, "pipeline": pipeline, "run": run, "payload": payload}
                key = connection.execute(schema.event.insert().values(**row)).inserted_primary_key
                project(connection, {**row, "id": int(key[0]) if key else 0})

    def rebuild(self) -> int:
        """Make every derived table anew from the events; return how many events there were."""
        with spoken(), self._engine.begin() as connection:
            return rebuild(connection)


def _plain(ranges: Iterable[OffsetRange]) -> list[list[Any]]:
    return [[r.topic, r.partition, r.start, r.end] for r in ranges]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
