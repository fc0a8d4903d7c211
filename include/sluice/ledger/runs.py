"""Queries about runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import sqlalchemy as sa

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import schema
from sluice.ledger.facts import Facts
from sluice.ledger.history import Histories
from sluice.ledger.lease import Lease
from sluice.ledger.offsets import Offsets
from sluice.ledger.rows import RunRow, Unannounced
from sluice.ledger.store import spoken
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.recovery import REDRIVEN

__all__ = ["Runs", "UnknownRunError"]

_NEWEST = 20
"""So many runs are looked at for what is the same in most of them."""


class UnknownRunError(ConfigError):
    """The ledger has no such run."""

    def __init__(self, pipeline: str, run_id: str, nearest: Sequence[str] = ()) -> None:
        meant = f"; the nearest are {', '.join(nearest)}" if nearest else ""
        super().__init__(
            f"the ledger has no run {run_id!r} of {pipeline!r}{meant}",
            state="nothing was read or written",
            next_step=f"choose one of: sluice status {pipeline}. When the run ended well elsewhere, use the "
            "ledger of that place: SLUICE_LEDGER_URL, or SLUICE_HOME",
        )


class Runs(Histories):
    """Queries about runs: which there are, what each planned, and its account."""

    def find(self, pipeline: str, run_id: str) -> RunRow | None:
        """Return one run by its id; None if there is none."""
        table = schema.run
        rows = self._rows(sa.select(table).where(table.c.pipeline == pipeline, table.c.run == run_id))
        return RunRow(**rows[0]) if rows else None

    def known(self, pipeline: str, run_id: str) -> RunRow:
        """Return one run.

        Raises
        ------
        UnknownRunError
            If the ledger does not have it; with the nearest names.
        """
        row = self.find(pipeline, run_id)
        if row is None:
            names = [known.run for known in self.newest(pipeline, limit=1000)]
            raise UnknownRunError(pipeline, run_id, get_close_matches(run_id, names, 3, 0.6))
        return row

    def ended(self, pipeline: str, run_id: str) -> RunRow:
        """Return one run that has ended, well or not: only such a run can be judged.

        Raises
        ------
        UnknownRunError
            If the ledger does not have it.
        LeaseHeldError
            If its driver is at work.
        ConfigError
            If its driver died, and no run has closed it since.
        """
        row = self.known(pipeline, run_id)
        if row.state != "open":
            return row
        if run_id in self.at_work(pipeline).values():
            raise LeaseHeldError(
                f"run {run_id!r} of {pipeline!r} is at work, and only a run that has ended is judged",
                state="nothing was judged; the run goes on",
                next_step="try again when it has ended",
            )
        raise ConfigError(
            f"run {run_id!r} of {pipeline!r} never ended: its driver died",
            state="nothing was judged; what it committed is in the sink, and the rest of its records is unread",
            next_step="run it again: it goes on where it stopped, and is judged at its end",
        )

    def newest(
        self,
        pipeline: str | None = None,
        *,
        state: str | None = None,
        kind: str | None = None,
        without: Collection[str] = (),
        limit: int = 20,
    ) -> list[RunRow]:
        """Return the newest runs, newest first; ``without`` those of some pipelines."""
        table = schema.run
        query = sa.select(table).order_by(table.c.sequence.desc()).limit(limit)
        if pipeline is not None:
            query = query.where(table.c.pipeline == pipeline)
        if without:
            query = query.where(table.c.pipeline.not_in(list(without)))
        if state is not None:
            query = query.where(table.c.state == state)
        if kind is not None:
            query = query.where(table.c.kind == kind)
        return [RunRow(**r) for r in self._rows(query)]

    def account(self, pipeline: str, run_id: str) -> dict[str, Any]:
        """Return a run's account: one element of ``runs`` in the JSON that commands print.

        Raises
        ------
        UnknownRunError
            If the ledger does not have it.
        """
        row, facts, offsets = self.known(pipeline, run_id), Facts(self._engine), Offsets(self._engine)
        counts = sum((a.counts for a in offsets.accounts(pipeline, run_id)), Counts())
        return {
            "run": run_id,
            "recovery": row.recovery,
            **counts.as_dict(),
            "verdict": row.verdict,
            "seconds": row.seconds,
            **({"interval": row.interval, "replaced": self._taken(pipeline, run_id)} if row.interval else {}),
            **({"retracted": self._taken_back(pipeline, run_id)} if row.kind == "retract" else {}),
            **({"reset": _reset(offsets.resets(pipeline).by(run_id))} if row.kind == "reset" else {}),
            **({"failover": _failover(offsets.resets(pipeline).by(run_id))} if row.kind == "failover" else {}),
            **{key: told for fact in facts.of_run(pipeline, run_id) for key, told in fact.account().items()},
            **({"tables": tables} if (tables := self._tables_read(pipeline, run_id)) else {}),
            **({"reason": row.reason} if row.reason else {}),
            **({"notes": row.notes} if row.notes else {}),
            # why the verdict is not "passed"; earlier versions did not record it
            **({"reasons": reasons} if (reasons := (row.judgement or {}).get("reasons")) else {}),
        }

    def _tables_read(self, pipeline: str, run_id: str) -> dict[str, list[int]]:
        """Return which versions of joined tables the batches of a run read, by name, in ascending order."""
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type == "BatchStarted"
        )
        begun = (row["payload"] for row in self._rows(query.order_by(table.c.id)))
        found: dict[str, set[int]] = {}
        for told in {(p["epoch"], p["batch"]): p for p in begun}.values():  # as each was begun last
            for name, pin in told.get("tables", {}).items():
                found.setdefault(name, set()).add(int(pin["version"]))
        return {name: sorted(versions) for name, versions in found.items()}

    def _taken_back(self, pipeline: str, run_id: str) -> dict[str, int]:
        """Return how many offsets a run retracted: of ``written`` ones, and with others that are open now, too."""
        moved = Offsets(self._engine).retractions(pipeline, run_id)
        written = sum(item["written"] for item in moved)
        return {"written": written, "opened": sum(end - start for item in moved for start, end in item["ranges"])}

    def _taken(self, pipeline: str, run_id: str) -> int:
        """Return how many offsets the last commit of an interval run removed from the sink."""
        table = schema.account
        query = sa.select(table.c.batch, sa.func.sum(table.c.replaced).label("replaced")).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.epoch < REDRIVEN
        )
        rows = self._rows(query.group_by(table.c.batch).order_by(table.c.batch.desc()).limit(1))
        return int(rows[0]["replaced"]) if rows else 0

    def running(self, pipeline: str) -> str | None:
        """Return the id of the run whose driver holds the pipeline's lease and may be alive; None if there is none."""
        return self.at_work(pipeline).get("")

    def all_running(self) -> dict[str, str]:
        """Return, by pipeline, the ids of live runs whose drivers hold a lease and may be alive."""
        with spoken():
            return {pipeline: holder.run for pipeline, holder in Lease.all_holders(self._engine).items()}

    def at_work(self, pipeline: str) -> dict[str, str]:
        """Return, by scope, the ids of runs whose drivers hold a lease and may be alive; see :class:`Lease`."""
        with spoken():
            holders = Lease.holders(self._engine, pipeline)
        return {scope: holder.run for scope, holder in holders.items()}

    def topic_ids(self, pipeline: str) -> dict[str, str]:
        """Return the topic ids that recent runs saw; each plan repeats the ids known before it."""
        recent = self.newest(pipeline, limit=20)  # a retried older run may be the only one that has an id
        return {topic: name for run in reversed(recent) for topic, name in run.topic_ids.items() if name}

    def leaders(self, pipeline: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the leader epoch and the end of each partition that the newest live run saw; nothing after a reset."""
        table = schema.event
        newest = sa.select(table.c.id, table.c.payload).where(table.c.pipeline == pipeline)
        newest = newest.order_by(table.c.id.desc()).limit(1)
        for run in self.newest(pipeline, kind="live", limit=1):
            plans = self._rows(newest.where(table.c.run == run.run, table.c.type == "RunPlanned"))
            resets = self._rows(newest.where(table.c.type == "PipelineReset"))
            if plans and not (resets and resets[0]["id"] > plans[0]["id"]):
                return {(t, p): (epoch, end) for t, p, epoch, end in plans[0]["payload"].get("leaders", ())}
        return {}

    def last_plan(self, pipeline: str, epoch: int) -> list[OffsetRange]:
        """Return what the newest live run of an epoch planned to read."""
        table = schema.event
        query = sa.select(table.c.payload).where(table.c.pipeline == pipeline, table.c.type == "RunPlanned")
        for row in self._rows(query.order_by(table.c.id.desc()).limit(50)):
            told = row["payload"]
            if told["kind"] == "live" and told["epoch"] == epoch and told["ranges"]:
                return [OffsetRange(*span) for span in told["ranges"]]
        return []

    def engine(self, pipeline: str) -> str | None:
        """Return what processed the records of the newest run that had some; None if the ledger does not know."""
        table = schema.event
        query = sa.select(table.c.payload).where(table.c.pipeline == pipeline, table.c.type == "RunClosed")
        rows = self._rows(query.order_by(table.c.id.desc()).limit(_NEWEST))
        return next((engine for row in rows if (engine := row["payload"].get("engine"))), None)

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
            for r in sorted(self._rows(plans.add_columns(events.c.id)), key=lambda r: r["id"])
        }  # the newest of several attempts wins
        span = (parts.c.run, parts.c.topic, parts.c.partition)
        accounts = sa.select(*span, sa.func.min(parts.c.start).label("start"), sa.func.max(parts.c.end).label("end"))
        committed: dict[str, list[OffsetRange]] = {name: [] for name in names}
        for r in self._rows(
            accounts.where(parts.c.pipeline == pipeline, parts.c.run.in_(names)).group_by(*span)
        ):  # fmt: skip
            committed[r["run"]].append(OffsetRange.of(r))
        return [(run, planned.get(run.run, []), committed[run.run]) for run in runs]

    def paces(self, pipeline: str, *, limit: int) -> list[tuple[int, float]]:
        """Return how many offsets each of the newest live runs committed, and in how many seconds.

        They count from the start of the first batch to the last commit. Left out are runs that failed or were tried
        again, because no driver was at work for a part of their time, and those by way of the write-ahead log, because
        landing does a part of the work before a batch starts.
        """
        table, events, parts = schema.run, schema.event, schema.account
        whole = sa.select(table.c.run).where(
            table.c.pipeline == pipeline,
            table.c.kind == "live",
            table.c.state == "done",
            table.c.attempts == 1,
            table.c.recovery != "wal",
        )
        names = [r["run"] for r in self._rows(whole.order_by(table.c.sequence.desc()).limit(limit))]
        mine = (events.c.pipeline == pipeline, events.c.run.in_(names))
        batches = sa.select(
            events.c.run, sa.func.min(events.c.at).label("start"), sa.func.max(events.c.at).label("end")
        )
        kinds = events.c.type.in_(["BatchStarted", "BatchCommitted"])
        spans = {r["run"]: r for r in self._rows(batches.where(*mine, kinds).group_by(events.c.run))}
        offsets = sa.select(parts.c.run, sa.func.sum(parts.c.end - parts.c.start).label("offsets"))
        counted = offsets.where(parts.c.pipeline == pipeline, parts.c.run.in_(names)).group_by(parts.c.run)
        return [
            (int(r["offsets"]), _seconds(span["start"], span["end"]))
            for r in self._rows(counted)
            if (span := spans.get(r["run"])) is not None
        ]

    def former_names(self, pipeline: str) -> set[str]:
        """Return the former names of a pipeline; see :meth:`sluice.ledger.Ledger.adopted`."""
        table = schema.event
        query = sa.select(table.c.payload).where(table.c.pipeline == pipeline, table.c.type == "PipelineAdopted")
        return {row["payload"]["from"] for row in self._rows(query)}

    def unannounced(self, pipeline: str, run_id: str) -> Unannounced:
        """Return what a run's event has to tell of: all that was committed and no event has told of.

        Also what other runs committed, which failed or whose verdict did, and what was redriven. For a run of an
        interval only that interval, whichever run replaced it last; a live run leaves intervals out.
        """
        table, parts, runs = schema.batch, schema.account, schema.run
        own = sa.select(table.c.epoch).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.epoch < REDRIVEN
        )
        interval = self._rows(sa.select(runs.c.interval).where(runs.c.pipeline == pipeline, runs.c.run == run_id))
        of_interval = bool(interval and interval[0]["interval"])
        news = sa.select(table.c.epoch, table.c.batch, table.c.run).where(
            table.c.pipeline == pipeline,
            table.c.state == "committed",
            table.c.announced.is_(None),
            table.c.epoch.in_(own) if of_interval else table.c.epoch >= REDRIVEN,
        )
        keys = {(b["epoch"], b["batch"]) for b in self._rows(news)}
        query = sa.select(parts).where(
            parts.c.pipeline == pipeline, parts.c.run.in_(news.with_only_columns(table.c.run))
        )
        rows = [r for r in self._rows(query) if (r["epoch"], r["batch"]) in keys]
        rows.sort(key=lambda r: (r["topic"], r["partition"], r["start"]))
        upto: dict[int, int] = {}
        for r in rows:
            upto[r["epoch"]] = max(r["batch"], upto.get(r["epoch"], 0))
        if of_interval:  # of several replacements the last one counts
            rows = [r for r in rows if r["batch"] == upto[r["epoch"]]]
        written: dict[str, int] = {}
        for r in sorted(rows, key=lambda r: (r["epoch"], r["batch"])):
            written[r["run"]] = written.get(r["run"], 0) + r["written"]
        return Unannounced([RangeAccount.from_dict(r) for r in rows], written, sum(r["replaced"] for r in rows), upto)


def _reset(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the account of a reset says: the new epoch and where it begins, and what left the sink."""
    if not payload:
        return {"epoch": None, "positions": {}, "truncated": False, "removed": 0}
    return {name: payload[name] for name in ("epoch", "positions", "truncated", "removed")}


def _failover(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the account of a failover says; no epoch if the cluster was read already."""
    if not payload:
        return {"epoch": None, "from": None, "to": None, "positions": {}, "open": []}
    there = payload["cluster"]
    return {
        "epoch": payload["epoch"], "from": there["from"], "to": there["to"], "positions": payload["positions"],
        "open": payload["skipped"],
    }  # fmt: skip


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
