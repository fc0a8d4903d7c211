"""Queries about what the rows of runs looked like."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.queries import REDRIVEN, LedgerQueries
from sluice.profile import NO_ROWS, Profile

__all__ = ["Profiles"]


class Profiles(LedgerQueries):
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

    def profiled(self, pipeline: str, *, limit: int) -> list[str]:
        """Return the ids of the newest runs that have a profile, newest first."""
        runs, events = schema.run, schema.event
        there = sa.exists().where(
            events.c.pipeline == runs.c.pipeline, events.c.run == runs.c.run, events.c.type == "RowsProfiled"
        )
        query = sa.select(runs.c.run).where(runs.c.pipeline == pipeline, there)
        return [row["run"] for row in self._rows(query.order_by(runs.c.sequence.desc()).limit(limit))]
