"""Queries about what batches did beside moving records: to windows, to duplicates, with joined tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any

import sqlalchemy as sa

from sluice.facts import FACTS, BatchFact, Windows
from sluice.ledger import schema
from sluice.ledger.rows import PartitionTime, StateRow, WindowReach
from sluice.ledger.store import Queries
from sluice.ranges import OffsetRange, Times
from sluice.recovery import REDRIVEN

__all__ = ["Facts"]

_PAGE = 500
"""How many events are read at once."""


class Facts(Queries):
    """Queries about facts of batches (:mod:`sluice.facts`), joined tables and the size of the state."""

    def told(
        self, pipeline: str, kind: type[BatchFact], *, runs: Collection[str] | None = None, standing: bool = False
    ) -> list[dict[str, Any]]:
        """Return a kind of fact of each batch, oldest first: its ``as_dict``, with epoch and batch.

        Parameters
        ----------
        runs
            Only of these.
        standing
            Only since a reset last took all rows out.
        """
        table = schema.event
        query = sa.select(table.c.payload).where(table.c.pipeline == pipeline, table.c.type == kind.event)
        if runs is not None:
            query = query.where(table.c.run.in_(list(runs)))
        if standing:
            query = query.where(table.c.id > self._emptied(pipeline))
        return [dict(row["payload"]) for row in self._rows(query.order_by(table.c.id))]

    def runs_with(self, pipeline: str, kind: type[BatchFact]) -> set[str]:
        """Return the ids of the runs that have a kind of fact, also of those that read no record."""
        table = schema.event
        query = sa.select(table.c.run).where(table.c.pipeline == pipeline, table.c.type == kind.event).distinct()
        return {str(row["run"]) for row in self._rows(query)}

    def reach(self, pipeline: str, epochs: range) -> WindowReach:
        """Return how far the windows of some epochs came."""
        moves = [move for move in self.told(pipeline, Windows) if move["epoch"] in epochs]
        return WindowReach(
            max((move["latest"] for move in moves if move["latest"] is not None), default=None),
            max((move["closed_to"] for move in moves), default=0),
        )

    def of_run(self, pipeline: str, run_id: str) -> list[BatchFact]:
        """Return the facts that a run's account has, each of all of its batches together.

        Only the last one of an interval's commits counts: it replaced the others. For a batch that was recorded again,
        the newest event counts.
        """
        table, batches = schema.event, schema.batch
        kinds = {kind.event: kind for kind in FACTS if kind.accounted}
        query = sa.select(table.c.type, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type.in_(kinds)
        )
        found: dict[str, dict[tuple[int, int], BatchFact]] = {}
        for row in self._rows(query.order_by(table.c.id)):
            key = row["payload"]["epoch"], row["payload"]["batch"]
            found.setdefault(row["type"], {})[key] = kinds[row["type"]].from_dict(row["payload"])
        if any(epoch < REDRIVEN for of_kind in found.values() for epoch, _ in of_kind):
            last = sa.select(sa.func.max(batches.c.batch).label("last")).where(
                batches.c.pipeline == pipeline, batches.c.run == run_id, batches.c.state == "committed"
            )
            newest = self._rows(last)[0]["last"]
            found = {
                name: {key: fact for key, fact in of_kind.items() if key[0] >= REDRIVEN or key[1] == newest}
                for name, of_kind in found.items()
            }
        return [reduce(or_, found[name].values()) for name in kinds if found.get(name)]

    def partition_times(self, pipeline: str, epoch: int) -> Iterator[PartitionTime]:
        """Yield which event times the batches of an epoch read of each partition, newest first.

        No more of the ledger is read than is asked for. What an earlier version read is missing.
        """
        table, last = schema.event, None
        kinds = ("WindowsMoved", "DuplicatesDropped")
        query = sa.select(table.c.id, table.c.payload).where(table.c.pipeline == pipeline, table.c.type.in_(kinds))
        while True:
            page = query if last is None else query.where(table.c.id < last)
            rows = self._rows(page.order_by(table.c.id.desc()).limit(_PAGE))
            for row in rows:
                number, told = row["payload"]["epoch"], row["payload"].get("partitions")
                if REDRIVEN < number < epoch or (number == epoch and told is None):
                    return
                if number == epoch:
                    yield from (PartitionTime(name, part, latest, told["at"]) for name, part, latest in told["latest"])
            if len(rows) < _PAGE:
                return
            last = rows[-1]["id"]

    def event_times(self, pipeline: str, timing: str) -> list[Times]:
        """Return the event times of ranges that windows absorbed, where they are known; a reset forgets them.

        Parameters
        ----------
        timing
            Where the file decided otherwise then which event time a record has, they do not count:
            :attr:`sluice.pipeline.Pipeline.timing`.
        """
        table, found = schema.account, []
        query = sa.select(table.c.epoch, table.c.batch).where(table.c.pipeline == pipeline, table.c.closed.is_(None))
        standing = {(row["epoch"], row["batch"]) for row in self._rows(query.distinct())}
        for told in self.told(pipeline, Windows):
            if told.get("timing") != timing or (told["epoch"], told["batch"]) not in standing:
                continue
            for topic, partition, start, end, first, last in told["times"]:
                span = OffsetRange(topic, partition, start, end)
                found.append(Times.none(span) if first is None else Times(span, first, last))
        return found

    def states(self, pipeline: str, *, epoch: int | None = None) -> Iterator[StateRow]:
        """Yield the state that each run left behind, newest first; of a run's attempts, the last one's.

        No more of the ledger is read than is asked for.

        Parameters
        ----------
        epoch
            Only those of this epoch.
        """
        table = schema.event
        query = sa.select(table).where(table.c.pipeline == pipeline, table.c.type == "StateMeasured")
        seen, last = set[tuple[str, int]](), None
        while True:
            page = query if last is None else query.where(table.c.id < last)
            rows = self._rows(page.order_by(table.c.id.desc()).limit(_PAGE))
            for row in rows:
                told = row["payload"]
                if epoch is not None and told["epoch"] < epoch:
                    return
                key = row["run"], told["epoch"]
                if epoch in (None, told["epoch"]) and key not in seen:
                    seen.add(key)
                    yield StateRow(row["run"], row["at"], **told)
            if len(rows) < _PAGE:
                return
            last = rows[-1]["id"]

    def tables_begun(
        self, pipeline: str, epoch: int, batch: int, *, run_id: str | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return the joined tables with which a batch was begun that the ledger does not have as committed.

        Parameters
        ----------
        run_id
            Only if this run began it last.

        Returns
        -------
        dict
            By name, ``path`` and ``version``, as the batch was begun last; empty if it was not, or joins nothing.
        """
        table, events = schema.batch, schema.event
        begun = self._rows(
            sa.select(table.c.run).where(
                table.c.pipeline == pipeline, table.c.epoch == epoch, table.c.batch == batch, table.c.state == "started"
            )
        )
        if not begun or run_id not in (None, begun[0]["run"]):
            return {}
        told = sa.select(events.c.payload).where(
            events.c.pipeline == pipeline, events.c.run == begun[0]["run"], events.c.type == "BatchStarted"
        )
        key = (epoch, batch)
        found = (row["payload"] for row in self._rows(told.order_by(events.c.id.desc())))
        last: Mapping[str, Any] = next(
            (payload for payload in found if (payload["epoch"], payload["batch"]) == key), {}
        )
        return {name: dict(pin) for name, pin in last.get("tables", {}).items()}

    def joined(self, pipeline: str) -> dict[tuple[int, int], dict[str, dict[str, Any]]]:
        """Return by epoch and batch the tables that it joined: ``path`` and ``version`` by name.

        They are those with which the run began it last that committed it. Batches that joined none are missing.
        """
        batches, table = schema.batch, schema.event
        known = self._rows(sa.select(batches).where(batches.c.pipeline == pipeline))
        runs = {(row["epoch"], row["batch"]): row["run"] for row in known}
        query = sa.select(table.c.run, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type == "BatchStarted"
        )
        found: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
        for row in self._rows(query.order_by(table.c.id)):
            key = row["payload"]["epoch"], row["payload"]["batch"]
            if row["payload"].get("tables") and runs.get(key) == row["run"]:  # who committed it, not who tried to
                found[key] = row["payload"]["tables"]
        return found
