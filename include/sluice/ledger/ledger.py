"""Records events. An event and its effect on the derived tables are one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.exc import IntegrityError

from sluice.home import Home
from sluice.ledger import schema
from sluice.ledger.history import Histories
from sluice.ledger.lease import Lease
from sluice.ledger.plain import plain
from sluice.ledger.profiles import Profiles
from sluice.ledger.projection import project, rebuild
from sluice.ledger.store import LedgerError, open_engine, spoken
from sluice.ranges import LostRange, OffsetRange, Positions, RangeAccount, Times
from sluice.recovery import Route
from sluice.text import checked_run, storable

__all__ = ["Ledger"]


class Ledger(Histories, Profiles):
    """The account of runs. Open it with :meth:`open`; several processes may use it.

    Notes
    -----
    Writing needs the pipeline's lease and checks its token in the same transaction, so a fenced driver cannot record
    anything. Recording is idempotent: a batch that is recorded again after a crash changes nothing.
    """

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
        gated: bool = False,
        leaders: Sequence[tuple[str, int, int, int]] = (),
    ) -> None:
        """Record that a run begins; the same run id again is another attempt.

        Parameters
        ----------
        interval
            For an interval run: :attr:`sluice.run.interval.Interval.key`.
        reason
            The user's reason for the run.
        sources
            The ranges by where they are read from, unless all come from Kafka.
        gated
            Whether it judges each batch before it commits it.
        leaders
            :func:`sluice.sources.state.leaders` of what it saw.
        """
        payload = {
            "kind": kind,
            "recovery": recovery,
            "epoch": epoch,
            "ranges": [r.as_list() for r in ranges],
            "topic_ids": dict(topic_ids),
            "token": lease.token,
            "interval": interval,
            "reason": reason,
            **({"sources": {name: [r.as_list() for r in parts] for name, parts in sources.items()}} if sources else {}),
            **({"gated": True} if gated else {}),
            **({"leaders": [list(each) for each in leaders]} if leaders else {}),
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
        """Record the offsets that an interval of record time was resolved to; return the interval's number.

        Parameters
        ----------
        whole
            Whether both ends are final; otherwise a later run may find that the interval reaches further.
        """
        known = self.interval(lease.pipeline, interval)
        for _ in range(20):
            number = known.number if known else 1 + max((i.number for i in self.intervals(lease.pipeline)), default=0)
            payload = {
                "number": number, "interval": interval, "ranges": [r.as_list() for r in ranges], "whole": whole,
                "topic_ids": dict(topic_ids),
            }  # fmt: skip
            try:
                self._record(lease, None, ("IntervalResolved", payload))
            except LedgerError as error:
                # another interval took the number meanwhile
                if not isinstance(error.__cause__, IntegrityError):
                    raise
                continue
            return number
        raise LedgerError(f"no number is free for the interval {interval} of {lease.pipeline!r}")

    def times_found(self, lease: Lease, times: Sequence[Times]) -> None:
        """Record the record times of ranges for which no batch's account has them."""
        spans = [[t.range.topic, t.range.partition, t.range.start, t.range.end, t.first, t.last] for t in times]
        self._record(lease, None, ("TimesFound", {"times": spans}))

    def epoch_opened(
        self, lease: Lease, *, epoch: int, route: Route, positions: Positions | None, run_id: str | None = None
    ) -> None:
        """Record that an epoch begins at these positions. Recording an epoch again changes its route, which is allowed
        only while nothing was committed in it."""
        payload = {"epoch": epoch, "lineage": route.value, "positions": positions}
        self._record(lease, run_id, ("EpochOpened", payload))

    def degraded(self, lease: Lease, note: str, *, run_id: str | None = None) -> None:
        """Record, in words, that a run goes on with less than its strategy promises."""
        self._record(lease, run_id, ("Degraded", {"note": note}))

    def segment_sealed(
        self, lease: Lease, *, epoch: int, batch: int, segments: Sequence[Mapping[str, Any]], run_id: str | None = None
    ) -> None:
        """Record the sealed segments of a batch; see :class:`sluice.wal.Segment`."""
        payload = {
            "epoch": epoch, "batch": batch, "segments": [dict(s) for s in segments],
            "records": sum(s["records"] for s in segments), "bytes": sum(s["length"] for s in segments),
        }  # fmt: skip
        self._record(lease, run_id, ("SegmentSealed", payload))

    def segments_cleaned(self, lease: Lease, payload: Mapping[str, Any]) -> None:
        """Record what was removed from the write-ahead log, and what it retains of each batch."""
        self._record(lease, None, ("SegmentsCleaned", dict(payload)))

    def batch_started(
        self,
        lease: Lease,
        *,
        epoch: int,
        batch: int,
        ranges: Sequence[OffsetRange],
        tables: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Record that a batch with these ranges is being processed.

        Parameters
        ----------
        tables
            The tables that its transform joins, by name: ``path`` and ``version`` of each. If the driver dies, the
            batch is processed again with these.
        """
        payload: dict[str, Any] = {"epoch": epoch, "batch": batch, "ranges": [r.as_list() for r in ranges]}
        if tables:
            payload["tables"] = {name: dict(pin) for name, pin in tables.items()}
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
        evolved: Sequence[Mapping[str, str]] = (),
        windows: Mapping[str, Any] | None = None,
        dedupe: Mapping[str, Any] | None = None,
        rescued: Mapping[str, Any] | None = None,
        origins: Mapping[str, Any] | None = None,
        profile: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> None:
        """Record the split of a batch that the sink holds, with its lost or redriven ranges; atomic.

        Parameters
        ----------
        lost
            The ranges that the accounts count as lost.
        redriven
            ``lost`` or ``quarantined``: what these ranges were before; None for a batch of a live run.
        source
            Where redriven records came from.
        replaced
            For an interval, per range: how many offsets its commits removed from the sink and from the quarantine.
        evolved
            The columns that the batch's commit added to the sink: ``column`` and ``type`` of each.
        windows
            What the batch did to windows of event time; None if the pipeline has none.
        dedupe
            Which records the batch dropped as late ones or duplicates; None if the pipeline has no ``dedupe``.
        rescued
            :meth:`sluice.rescued.Rescued.as_dict` of the batch; None if it has none.
        origins
            :meth:`sluice.run.settled.Screened.as_dict` of the batch; None if the pipeline has one cluster.
        profile
            :meth:`sluice.profile.Profile.as_dict` of the batch's rows; None if nobody profiled them.
        run_id
            The id of the run that wrote the batch, if it is another one (reconciling).
        """
        payload: dict[str, Any] = {"epoch": epoch, "batch": batch, "accounts": [a.as_dict() for a in accounts]}
        for account, item in zip(accounts, payload["accounts"], strict=True) if replaced else ():
            item["replaced"], item["replaced_quarantined"] = replaced[account.range] if replaced else (0, 0)
        if run_id is not None:
            payload["reconciled_by"] = lease.holder.run
        events: list[tuple[str, dict[str, Any]]] = []
        key = {"epoch": epoch, "batch": batch}
        if lost:
            events.append(("RangeLost", {**key, "ranges": [item.as_dict() for item in lost]}))
        if evolved:
            events.append(("SchemaEvolved", {**key, "added": [dict(column) for column in evolved]}))
        if redriven is not None:
            payload["accounts"] = [{**a, "of": redriven} for a in payload["accounts"]]
            ranges = [a.range.as_list() for a in accounts]
            events.append(("RangeRedriven", {**key, "of": redriven, "ranges": ranges, "source": dict(source or {})}))
        if windows is not None:
            events.append(("WindowsMoved", {**key, **windows}))
        # the event times of partitions are told by it, too: also if nothing was dropped
        if dedupe is not None and (
            dedupe["late"] or dedupe["duplicates"] or dedupe.get("partitions", {}).get("latest")
        ):
            events.append(("DuplicatesDropped", {**key, **dedupe}))
        if rescued is not None and rescued["records"]:
            events.append(("FieldsRescued", {**key, **rescued}))
        if origins is not None:
            events.append(("OriginsSettled", {**key, **origins}))
        if profile is not None:
            events.append(("RowsProfiled", {**key, **profile}))
        self._record(lease, run_id, *events, ("BatchCommitted", payload))

    def state_measured(self, lease: Lease, payload: Mapping[str, Any]) -> None:
        """Record the state that a run leaves behind: the attributes of :class:`~sluice.ledger.rows.StateRow`, from
        ``epoch`` on."""
        self._record(lease, None, ("StateMeasured", dict(payload)))

    def loss_acknowledged(
        self, lease: Lease, ranges: Sequence[OffsetRange], reason: str, *, undo: bool = False
    ) -> None:
        """Record that nobody brings back what was lost in these ranges, or that this was a mistake; idempotent.

        The counts stay: these offsets are lost. They are no longer open.
        """
        was, now = ("acknowledged", "open") if undo else ("open", "acknowledged")
        payload = {"ranges": [r.as_list() for r in ranges], "reason": reason, "was": was, "is": now}
        self._record(lease, None, ("LossAcknowledged", payload))

    def forgotten_by(self, lease: Lease, reason: str) -> None:
        """Record that the pipeline is not to be listed any more, until it runs again. Nothing else changes."""
        self._record(lease, None, ("PipelineForgotten", {"reason": reason}))

    def retracted(
        self,
        lease: Lease,
        *,
        epoch: int,
        batch: int,
        moved: Sequence[Mapping[str, Any]],
        reason: str,
        run_id: str | None = None,
    ) -> None:
        """Record that a commit took rows out of the sink, and opens their offsets as lost; idempotent and atomic.

        Parameters
        ----------
        moved
            Per account what it no longer holds: :meth:`sluice.run.retraction.Part.as_dict`.
        run_id
            The id of the run that retracted them, if it is another one (reconciling).
        """
        key = {"epoch": epoch, "batch": batch}
        told = {**key, "reason": reason, "moved": [dict(item) for item in moved]}
        self._record(lease, run_id, ("RangeRetracted", told), ("BatchCommitted", {**key, "accounts": []}))

    def reset(self, lease: Lease, payload: Mapping[str, Any], *, run_id: str | None = None) -> None:
        """Record that the pipeline begins again in a new epoch; idempotent and atomic.

        Parameters
        ----------
        payload
            :meth:`sluice.run.resetting.Reset.as_dict`.
        run_id
            The id of the run that reset it, if it is another one (reconciling).
        """
        self._record(lease, run_id, ("PipelineReset", dict(payload)))

    def adopted(self, lease: Lease, old: str) -> None:
        """Transfer all records of the pipeline ``old`` to this one, and record the transfer, in one transaction."""
        with spoken(), self._engine.begin() as connection:
            lease.verify(connection)
            for table in (*schema.DERIVED, schema.event):
                # nothing was committed under the new name: it has refused runs at most
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
        self, lease: Lease | None, pipeline: str, run_id: str, *, verdict: str, judgement: Mapping[str, Any]
    ) -> None:
        """Record a verdict. Validating again needs no lease, because it changes no data.

        Observed values are stored as :func:`~sluice.ledger.plain.plain` converts them.
        """
        payload = {"verdict": verdict, "judgement": plain(dict(judgement))}
        self._record(lease, run_id, ("Judged", payload), pipeline=pipeline)

    def verdict_accepted(
        self,
        pipeline: str,
        run_id: str,
        *,
        verdict: str,
        reason: str,
        batch: tuple[int, int] | None = None,
        faults: Mapping[str, int | None] | None = None,
    ) -> None:
        """Record that somebody accepts what a run wrote although its verdict failed. It needs no lease, as above.

        Parameters
        ----------
        batch
            Epoch and number of the batch that waits for this, and is published by the next run.
        faults
            What was wrong with that batch; see :func:`sluice.run.verdict.faults`.
        """
        of_batch: dict[str, Any] = {"batch": list(batch)} if batch else {}
        of_batch |= {} if faults is None else {"faults": dict(faults)}
        payload = {"verdict": verdict, "reason": reason, **of_batch}
        self._record(None, run_id, ("VerdictAccepted", payload), pipeline=pipeline)

    def normal_set(self, pipeline: str, run_id: str, *, reason: str) -> None:
        """Record that what is expected by history begins with this run: runs before it say nothing any more."""
        self._record(None, run_id, ("NormalSet", {"reason": reason}), pipeline=pipeline)

    def batch_given_up(self, pipeline: str, run_id: str, *, reason: str, batch: tuple[int, int]) -> None:
        """Record that a batch, which waits because its verdict failed, is not to be published."""
        self._record(None, run_id, ("BatchGivenUp", {"reason": reason, "batch": list(batch)}), pipeline=pipeline)

    def announced(self, pipeline: str, run_id: str, *, upto: Mapping[int, int], version: int | None) -> None:
        """Record that a run's asset event was sent. It needs no lease: it changes no data.

        Parameters
        ----------
        upto
            By epoch the newest batch that the event told of; it told of all before it, too.
        version
            The version of the sink's table that the event named.
        """
        payload = {"upto": sorted([epoch, batch] for epoch, batch in upto.items()), "version": version}
        self._record(None, run_id, ("Announced", payload), pipeline=pipeline)

    def run_closed(
        self,
        lease: Lease,
        *,
        state: str,
        seconds: float | None = None,
        verdict: str | None = None,
        error: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        engine: str | None = None,
    ) -> None:
        """Record how a run ended: ``done``, ``failed``, or ``abandoned`` (its driver died; recorded by a later run).

        Parameters
        ----------
        engine
            What processed its records: ``arrow``, or ``spark`` if the Arrow path could not be taken or was given up;
            None if there was nothing to process, or it is not known.
        """
        payload = {"state": state, "seconds": seconds, "verdict": verdict, "error": dict(error) if error else None}
        payload |= {} if engine is None else {"engine": engine}
        self._record(lease, run_id, ("RunClosed", payload))

    def _record(
        self,
        lease: Lease | None,
        run_id: str | None,
        *events: tuple[str, dict[str, Any]],
        pipeline: str | None = None,
    ) -> None:
        with spoken(), self._engine.begin() as connection:
            if lease is not None:
                lease.verify(connection)
                pipeline, run_id = lease.pipeline, run_id or lease.holder.run
            for kind, told in events:
                payload = storable(told)
                row = {"at": _now(), "type": kind, "pipeline": pipeline, "run": run_id, "payload": payload}
                key = connection.execute(schema.event.insert().values(**row)).inserted_primary_key
                project(connection, {**row, "id": int(key[0]) if key else 0})

    def rebuild(self) -> int:
        """Recreate the derived tables from the events; return the number of events."""
        with spoken(), self._engine.begin() as connection:
            return rebuild(connection)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
