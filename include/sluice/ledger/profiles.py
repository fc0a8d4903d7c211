"""Queries about what the rows of runs looked like."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import Any

import sqlalchemy as sa

from sluice.facts.profile import NO_ROWS, Profile
from sluice.ledger import schema
from sluice.ledger.offsets import Offsets
from sluice.ledger.runs import Runs
from sluice.ledger.store import Queries
from sluice.ledger.verdicts import Verdicts
from sluice.recovery import REDRIVEN

__all__ = ["Profiles"]


_AT_ONCE = 500
_SEEN = 10
"""For each run that is asked for, as many judged ones are looked at: some were not accepted."""


class Profiles(Queries):
    """What batches wrote, as it was profiled when they were written."""

    def of(self, pipeline: str, runs: Collection[str]) -> Profile | None:
        """Return the profile of what some runs wrote; None if none of their batches has one.

        For an interval that a run replaced several times, what it wrote last counts.
        """
        found = self.by_run(pipeline, runs)
        return reduce(Profile.__or__, found.values(), NO_ROWS) if found else None

    def by_run(self, pipeline: str, runs: Collection[str]) -> dict[str, Profile]:
        """Return, by run, the profiles of those that have one."""
        table = schema.event
        query = sa.select(table.c.run, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run.in_(list(runs)), _profiled()
        )
        batches: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
        for row in self._rows(query.order_by(table.c.id)):  # recorded again after a crash, the newest says the same
            told = row["payload"]
            epoch = told["epoch"]
            key = (epoch, 0 if epoch < REDRIVEN else told["batch"])
            batches.setdefault(row["run"], {})[key] = told
        return {
            run: reduce(Profile.__or__, (Profile.from_dict(told) for told in parts.values()), NO_ROWS)
            for run, parts in batches.items()
        }

    def runs(
        self,
        pipeline: str,
        *,
        limit: int,
        upto: int | None = None,
        standing: bool = False,
        live: bool | None = None,
    ) -> list[str]:
        """Return the ids of the newest runs that have a profile, newest first.

        Parameters
        ----------
        upto
            The :attr:`~sluice.ledger.RunRow.sequence` of the last run that counts.
        standing
            Leave out runs of which something was retracted, or that a reset closed.
        live
            Only live runs, or only others.
        """
        table = schema.event
        # from the events, because thousands of runs in a row may have found nothing; without a join, which SQLite may
        # begin with the runs, and then looks through all profiles for each
        query = sa.select(table.c.run).where(table.c.pipeline == pipeline, table.c.type == "RowsProfiled")
        query = query.group_by(table.c.run).order_by(sa.func.max(table.c.id).desc())
        names = [row["run"] for row in self._rows(query)]
        gone = self._retracted(pipeline) if standing else set()
        runs, found = schema.run, list[str]()
        for start in range(0, len(names), _AT_ONCE):
            some = [name for name in names[start : start + _AT_ONCE] if name not in gone]
            known = sa.select(runs.c.run).where(runs.c.pipeline == pipeline, runs.c.run.in_(some))
            if upto is not None:
                known = known.where(runs.c.sequence <= upto)
            if standing:
                known = known.where(~_closed())
            if live is not None:
                known = known.where((runs.c.kind == "live") if live else (runs.c.kind != "live"))
            found += [row["run"] for row in self._rows(known.order_by(runs.c.sequence.desc()))]
            if len(found) >= limit:
                break
        return found[:limit]

    def accepted(self, pipeline: str, *, before: int, limit: int) -> list[Profile]:
        """Return the profiles of the newest accepted live runs before another one, newest first.

        Accepted is a run whose verdict is ``passed`` or ``warned``, or whose failed verdict a user accepted. What was
        judged together is one run. Left out are runs of which something was retracted, that a reset closed, or that are
        older than the newest run before that other one from which on everything is normal
        (:class:`sluice.ledger.events.NormalSet`).

        Parameters
        ----------
        before
            The :attr:`~sluice.ledger.RunRow.sequence` of that run.
        """
        table, events = schema.run, schema.event
        # however many runs failed since: they are not among those that are looked at
        settled = sa.exists().where(
            events.c.pipeline == pipeline, events.c.run == table.c.run, events.c.type == "VerdictAccepted"
        )
        query = sa.select(
            table.c.run,
            table.c.verdict,
            table.c.judgement["runs"].label("together"),
            table.c.judgement["waits"].label("waits"),
        ).where(
            table.c.pipeline == pipeline,
            table.c.kind == "live",
            sa.or_(
                table.c.verdict.in_(("passed", "warned")), sa.and_(table.c.verdict.in_(("failed", "error")), settled)
            ),
            table.c.sequence < before,
            table.c.sequence >= self._normal_since(pipeline, before),
            ~_closed(),
        )
        gone, seen = self._retracted(pipeline), set[str]()
        groups: list[list[str]] = []
        rows = self._rows(query.order_by(table.c.sequence.desc()).limit(_SEEN * limit))
        there = self._with_profile(pipeline, [row["run"] for row in rows])
        for row in rows:
            if row["run"] not in there:
                continue
            group = sorted({row["run"], *(row["together"] or ())})
            if row["run"] in seen or gone & set(group):
                continue
            seen |= set(group)
            # of a run with a batch that waits, only a part was written
            if row["verdict"] in ("failed", "error") and (
                row["waits"] or Verdicts(self._engine).acceptance(pipeline, row["run"]) is None
            ):
                continue
            groups.append(group)
            if len(groups) == limit:
                break
        found = self.by_run(pipeline, [run for group in groups for run in group])
        return [reduce(Profile.__or__, (found[run] for run in group if run in found), NO_ROWS) for group in groups]

    def normal_since(self, pipeline: str) -> tuple[str, str] | None:
        """Return the run from which on everything is normal, and why; None if no user said so."""
        found = next(iter(self._normals(pipeline)), None)
        return None if found is None else (found["run"], str(found["payload"]["reason"]))

    def _normal_since(self, pipeline: str, before: int) -> int:
        """Return the sequence of the run with which the history of a later one begins, as a user said last."""
        table, names = schema.run, [row["run"] for row in self._normals(pipeline)]
        query = sa.select(table.c.run, table.c.sequence).where(
            table.c.pipeline == pipeline, table.c.run.in_(names), table.c.sequence < before
        )
        known = {row["run"]: int(row["sequence"]) for row in self._rows(query)} if names else {}
        return next((known[name] for name in names if name in known), 0)

    def _normals(self, pipeline: str) -> Sequence[Any]:
        """Return what a user said to be normal from then on, the newest first; not of runs that were taken back."""
        table = schema.event
        query = sa.select(table.c.run, table.c.payload).where(table.c.pipeline == pipeline, table.c.type == "NormalSet")
        found = self._rows(query.order_by(table.c.id.desc()))
        gone = self._retracted(pipeline) if found else set()
        return [row for row in found if row["run"] not in gone and not self._is_given_up(pipeline, row["run"])]

    def _is_given_up(self, pipeline: str, run_id: str) -> bool:
        """Return whether the batch of a run that waited was given up, whichever run that was said of."""
        run = Runs(self._engine).find(pipeline, run_id)
        waits = None if run is None else (run.judgement or {}).get("waits")
        settled = None if waits is None else Verdicts(self._engine).decision(pipeline, *waits)
        return settled is not None and settled.event == "BatchGivenUp"

    def _with_profile(self, pipeline: str, runs: Sequence[str]) -> set[str]:
        table = schema.event
        query = sa.select(table.c.run).where(table.c.pipeline == pipeline, table.c.run.in_(list(runs)), _profiled())
        return {row["run"] for row in self._rows(query.distinct())}

    def _retracted(self, pipeline: str) -> set[str]:
        return {item["run"] for item in Offsets(self._engine).retractions(pipeline)}


def _profiled() -> sa.ColumnElement[bool]:
    """Return the condition that an event is a profile, in a form for which a database does not take the index by type.

    That index has the events of all runs. The one by run has the few that are asked for.
    """
    return schema.event.c.type.concat("") == "RowsProfiled"


def _closed() -> sa.ColumnElement[bool]:
    runs, parts = schema.run, schema.account
    return sa.exists().where(
        parts.c.pipeline == runs.c.pipeline, parts.c.run == runs.c.run, parts.c.closed.is_not(None)
    )
