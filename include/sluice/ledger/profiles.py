"""Queries about what the rows of runs looked like."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.queries import REDRIVEN
from sluice.ledger.verdicts import Verdicts
from sluice.profile import NO_ROWS, Profile

__all__ = ["Profiles"]


class Profiles(Verdicts):
    """What batches wrote, as it was profiled when they were written."""

    def profile(self, pipeline: str, runs: Collection[str]) -> Profile | None:
        """Return the profile of what some runs wrote; None if none of their batches has one.

        Of an interval that a run replaced several times, what it wrote last counts.
        """
        found = self.profiles(pipeline, runs)
        return reduce(Profile.__or__, found.values(), NO_ROWS) if found else None

    def profiles(self, pipeline: str, runs: Collection[str]) -> dict[str, Profile]:
        """Return, by run, the profiles of those that have one."""
        table = schema.event
        query = sa.select(table.c.run, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run.in_(list(runs)), table.c.type == "RowsProfiled"
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

    def profiled(self, pipeline: str, *, limit: int, upto: int | None = None, standing: bool = False) -> list[str]:
        """Return the ids of the newest runs that have a profile, newest first.

        Parameters
        ----------
        upto
            The :attr:`~sluice.ledger.RunRow.sequence` of the last run that counts.
        standing
            Leave out runs of which something was retracted, or that a reset closed.
        """
        table = schema.run
        query = sa.select(table.c.run).where(table.c.pipeline == pipeline, _has_profile())
        if upto is not None:
            query = query.where(table.c.sequence <= upto)
        if standing:
            query = query.where(~_closed())
        gone = self._retracted(pipeline) if standing else set()
        rows = self._rows(query.order_by(table.c.sequence.desc()).limit(limit + len(gone)))
        return [row["run"] for row in rows if row["run"] not in gone][:limit]

    def accepted(self, pipeline: str, *, before: int, limit: int) -> list[Profile]:
        """Return the profiles of the newest accepted live runs before another one, newest first.

        Accepted is a run whose verdict is ``passed`` or ``warned``, or whose failed verdict somebody
        accepted. What was judged
        together is one run. Left out are runs of which something was retracted, that a reset closed, or that are
        older than the newest run from which on everything is normal (:meth:`sluice.ledger.Ledger.normal_set`).

        Parameters
        ----------
        before
            The :attr:`~sluice.ledger.RunRow.sequence` of that run.
        """
        table = schema.run
        query = sa.select(
            table.c.run,
            table.c.verdict,
            table.c.judgement["runs"].label("together"),
            table.c.judgement["waits"].label("waits"),
        ).where(
            table.c.pipeline == pipeline,
            table.c.kind == "live",
            table.c.verdict.in_(("passed", "warned", "failed", "error")),
            table.c.sequence < before,
            table.c.sequence >= self._normal_since(pipeline),
            _has_profile(),
            ~_closed(),
        )
        gone, seen = self._retracted(pipeline), set[str]()
        groups: list[list[str]] = []
        for row in self._rows(query.order_by(table.c.sequence.desc()).limit(10 * limit)):
            group = sorted({row["run"], *(row["together"] or ())})
            if row["run"] in seen or gone & set(group):
                continue
            seen |= set(group)
            # of a run with a batch that waits, only a part was written
            if row["verdict"] in ("failed", "error") and (
                row["waits"] or self.acceptance(pipeline, row["run"]) is None
            ):
                continue
            groups.append(group)
            if len(groups) == limit:
                break
        found = self.profiles(pipeline, [run for group in groups for run in group])
        return [reduce(Profile.__or__, (found[run] for run in group if run in found), NO_ROWS) for group in groups]

    def normal_since(self, pipeline: str) -> tuple[str, str] | None:
        """Return the run from which on everything is normal, and why; None if nobody said so."""
        found = self._normal(pipeline)
        return None if found is None else (found["run"], str(found["payload"]["reason"]))

    def _normal_since(self, pipeline: str) -> int:
        found = self._normal(pipeline)
        table = schema.run
        query = sa.select(table.c.sequence).where(
            table.c.pipeline == pipeline, table.c.run == (found["run"] if found else None)
        )
        return next((int(row["sequence"]) for row in self._rows(query)), 0) if found else 0

    def _normal(self, pipeline: str) -> Any:
        table = schema.event
        query = sa.select(table.c.run, table.c.payload).where(table.c.pipeline == pipeline, table.c.type == "NormalSet")
        return next(iter(self._rows(query.order_by(table.c.id.desc()).limit(1))), None)

    def _retracted(self, pipeline: str) -> set[str]:
        return {item["run"] for item in self.retractions(pipeline)}


def _has_profile() -> sa.ColumnElement[bool]:
    runs, events = schema.run, schema.event
    return sa.exists().where(
        events.c.pipeline == runs.c.pipeline, events.c.run == runs.c.run, events.c.type == "RowsProfiled"
    )


def _closed() -> sa.ColumnElement[bool]:
    runs, parts = schema.run, schema.account
    return sa.exists().where(
        parts.c.pipeline == runs.c.pipeline, parts.c.run == runs.c.run, parts.c.closed.is_not(None)
    )
