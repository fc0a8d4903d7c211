"""Queries about what batches did beside moving records: to windows, to duplicates and to unknown fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

import sqlalchemy as sa

from sluice.facts import FACTS, BatchFact
from sluice.ledger import schema
from sluice.ledger.rows import PartitionTime, StateRow
from sluice.ledger.store import reading, spoken
from sluice.ranges import OffsetRange, Times
from sluice.recovery import REDRIVEN

__all__ = ["Deeds"]

_PAGE = 500
"""How many events are read at once."""


class Deeds:
    """What the events of batches tell."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def latest_event_time(self, pipeline: str, epoch: int) -> int | None:
        """Return the latest event time that an epoch's windows absorbed, in milliseconds since 1970."""
        told = self.window_moves(pipeline)
        return max((p["latest"] for p in told if p["epoch"] == epoch and p["latest"] is not None), default=None)

    def partition_times(self, pipeline: str, epoch: int) -> Iterator[PartitionTime]:
        """Yield which event times the batches of an epoch read of each partition, newest first.

        No more of the ledger is read than is asked for. Nothing is told of what an earlier version read.
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

    def latest_before(self, pipeline: str, epoch: int, since: int) -> int | None:
        """Return the latest event time that windows of the epochs from ``since`` until before ``epoch`` absorbed."""
        told = (p for p in self.window_moves(pipeline) if since <= p["epoch"] < epoch)
        return max((p["latest"] for p in told if p["latest"] is not None), default=None)

    def closed_before(self, pipeline: str, epoch: int, since: int) -> int:
        """Return up to where windows of the epochs from ``since`` until before ``epoch`` are closed; 0 if none is."""
        told = (p for p in self.window_moves(pipeline) if since <= p["epoch"] < epoch)
        return max((p["closed_to"] for p in told), default=0)

    def given_up(self, pipeline: str, run_id: str) -> set[tuple[int, int]]:
        """Return epoch and number of the batches of a run that a user gave up."""
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type == "BatchGivenUp"
        )
        return {(row["payload"]["batch"][0], row["payload"]["batch"][1]) for row in self._rows(query)}

    def begun(self, pipeline: str) -> dict[tuple[int, int], list[OffsetRange]]:
        """Return the ranges of the live batches that were begun, and of which the ledger has no commit.

        Returns
        -------
        dict
            By epoch and number; what was begun last counts.
        """
        table, events = schema.batch, schema.event
        query = sa.select(table.c.epoch, table.c.batch).where(
            table.c.pipeline == pipeline, table.c.state == "started", table.c.epoch > REDRIVEN
        )
        keys = {(row["epoch"], row["batch"]) for row in self._rows(query)}
        told = sa.select(events.c.payload).where(events.c.pipeline == pipeline, events.c.type == "BatchStarted")
        found: dict[tuple[int, int], list[OffsetRange]] = {}
        for row in self._rows(told.order_by(events.c.id)) if keys else []:
            key = row["payload"]["epoch"], row["payload"]["batch"]
            if key in keys:
                found[key] = [OffsetRange(*span) for span in row["payload"]["ranges"]]
        return found

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

    def tables_read(self, pipeline: str, run_id: str) -> dict[str, list[int]]:
        """Return which versions of joined tables the batches of a run read, by name, in ascending order."""
        found: dict[str, set[int]] = {}
        for payload in self._of_batches(pipeline, run_id, "BatchStarted"):
            for name, pin in payload.get("tables", {}).items():
                found.setdefault(name, set()).add(int(pin["version"]))
        return {name: sorted(versions) for name, versions in found.items()}

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

    def closed_to(self, pipeline: str, epoch: int) -> int:
        """Return up to where all windows of an epoch are closed, in milliseconds since 1970; 0 if none is."""
        return max((p["closed_to"] for p in self.window_moves(pipeline) if p["epoch"] == epoch), default=0)

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
        for told in self.window_moves(pipeline):
            if told.get("timing") != timing or (told["epoch"], told["batch"]) not in standing:
                continue
            for topic, partition, start, end, first, last in told["times"]:
                span = OffsetRange(topic, partition, start, end)
                found.append(Times.none(span) if first is None else Times(span, first, last))
        return found

    def window_moves(self, pipeline: str, *, after: int = 0) -> list[dict[str, Any]]:
        """Return what each batch did to windows, oldest first: as ``WindowWriter`` counts it, with epoch and batch.

        Parameters
        ----------
        after
            Only events whose id is greater.
        """
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type == "WindowsMoved", table.c.id > after
        )
        return [dict(row["payload"]) for row in self._rows(query.order_by(table.c.id))]

    def facts(self, pipeline: str, run_id: str) -> list[BatchFact]:
        """Return the facts that a run's account has, each of all of its batches together.

        Of an interval's commits only the last one counts: it replaced the others. Of a batch that was recorded again,
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

    def window_runs(self, pipeline: str) -> set[str]:
        """Return the ids of the runs that did something to windows, also of those that read no record."""
        table = schema.event
        query = sa.select(table.c.run).where(table.c.pipeline == pipeline, table.c.type == "WindowsMoved").distinct()
        return {str(row["run"]) for row in self._rows(query)}

    def drops(self, pipeline: str) -> list[dict[str, Any]]:
        """Return what ``dedupe`` did in each batch, oldest first: as its writer counts it, with epoch and batch."""
        table = schema.event
        query = sa.select(table.c.payload).where(table.c.pipeline == pipeline, table.c.type == "DuplicatesDropped")
        return [dict(row["payload"]) for row in self._rows(query.order_by(table.c.id))]

    def states(self, pipeline: str, *, limit: int, epoch: int | None = None) -> list[StateRow]:
        """Return the state that the newest runs left behind, oldest first; of a run's attempts, the last one's.

        Parameters
        ----------
        epoch
            Only those of this epoch.
        """
        return list(islice(self.states_back(pipeline, epoch=epoch), limit))[::-1]

    def states_back(self, pipeline: str, *, epoch: int | None = None) -> Iterator[StateRow]:
        """Yield what :meth:`states` returns, newest first, and read no more of it than is asked for."""
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

    def _of_batches(self, pipeline: str, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind that a run has, one per batch: of those recorded again, the newest counts."""
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type == kind
        )
        found = (row["payload"] for row in self._rows(query.order_by(table.c.id)))
        return list({(p["epoch"], p["batch"]): p for p in found}.values())

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with spoken(), reading(self._engine) as connection:
            return connection.execute(query).mappings().all()
