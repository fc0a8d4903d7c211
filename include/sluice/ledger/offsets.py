"""Queries about offsets: how they were split, which are lost, how far each partition was read."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.rows import BatchRow, Entry, Epoch, IntervalRow, LostRow, Resets
from sluice.ledger.store import Queries
from sluice.ranges import OffsetRange, Positions, RangeAccount, Times
from sluice.recovery import REDRIVEN, Route

__all__ = ["Offsets", "effective"]


def effective(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that an account counts for its run.

    If a run replaced its interval several times, only the last split counts.
    """
    same = schema.account.alias()
    last = sa.select(sa.func.max(same.c.batch)).where(
        same.c.pipeline == table.c.pipeline, same.c.run == table.c.run, same.c.epoch == table.c.epoch
    )
    return sa.or_(table.c.epoch >= REDRIVEN, table.c.batch == last.scalar_subquery())


class Offsets(Queries):
    """Queries about accounts, lost ranges, positions, epochs and intervals."""

    def accounts(
        self, pipeline: str, run_id: str | None = None, *, batch: BatchRow | None = None, standing: bool = False
    ) -> list[RangeAccount]:
        """Return the split ranges of one run, of one batch, or of all live runs, in the order of offsets.

        Parameters
        ----------
        standing
            Leave out what a reset closed; of all live runs that is always left out.
        """
        table = schema.account
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if run_id is not None:
            query = query.where(table.c.run == run_id, effective(table))
        elif batch is None:
            query, standing = query.where(table.c.epoch > REDRIVEN), True
        if standing:
            query = query.where(table.c.closed.is_(None))
        if batch is not None:
            query = query.where(table.c.epoch == batch.epoch, table.c.batch == batch.batch)
        # not sorted by the database: SQLite would read all runs in this order rather than find one
        rows = sorted(self._rows(query), key=lambda r: (r["topic"], r["partition"], r["start"]))
        return [RangeAccount.from_dict(r) for r in rows]

    def entries(self, pipeline: str) -> list[Entry]:
        """Return the splits of live runs and redrives in the order of offsets, with whose they are.

        What a reset closed is left out.
        """
        table = schema.account
        query = sa.select(table).where(
            table.c.pipeline == pipeline, table.c.epoch >= REDRIVEN, table.c.closed.is_(None)
        )
        return [
            Entry(RangeAccount.from_dict(r), r["epoch"], r["batch"], r["run"], r["of"])
            for r in self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start, table.c.batch))
        ]

    def replaced(self, pipeline: str) -> list[tuple[int, RangeAccount, tuple[int, int]]]:
        """Return, per interval commit and range: the interval's number, the split, and how many offsets the commit
        removed from sink and quarantine. What a reset closed is left out."""
        table = schema.account
        query = sa.select(table).where(table.c.pipeline == pipeline, table.c.epoch < REDRIVEN, table.c.closed.is_(None))
        rows = self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start, table.c.batch))
        return [
            (-r["epoch"], RangeAccount.from_dict(r), (r["replaced"], r["replaced_quarantined"]))
            for r in rows
        ]  # fmt: skip

    def lost(self, pipeline: str, *, state: str | None = "open", run_id: str | None = None) -> list[LostRow]:
        """Return lost ranges in the order of offsets: those in a state, by default the open ones, or all (None).

        For one run: what it lost, and what the next run counted as lost because that run's batch was given up.
        """
        table = schema.lost
        query = sa.select(table).where(table.c.pipeline == pipeline)
        if state is not None:
            query = query.where(table.c.state == state)
        if run_id is not None:
            given_up = [
                sa.and_(table.c.epoch == epoch, table.c.batch == batch, table.c.reason.startswith("retracted: "))
                for epoch, batch in self._given_up(pipeline, run_id)
            ]
            query = query.where(sa.or_(table.c.run == run_id, *given_up))
        names = ("epoch", "batch", "run", "at", "reason", "sample", "state", "redriven_by")
        return [
            LostRow(OffsetRange.of(r), **{n: r[n] for n in names})
            for r in self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start))
        ]

    def never_read(self, pipeline: str) -> list[LostRow]:
        """Return the lost ranges that were not redriven: the open ones, and those that were acknowledged."""
        return [row for row in self.lost(pipeline, state=None) if row.state != "redriven"]

    def retractions(self, pipeline: str, run_id: str | None = None) -> list[dict[str, Any]]:
        """Return what was retracted, by all runs or by one: the ``moved`` of each commit, oldest first."""
        table = schema.event
        query = sa.select(table.c.payload).where(table.c.pipeline == pipeline, table.c.type == "RangeRetracted")
        if run_id is not None:
            query = query.where(table.c.run == run_id)
        else:  # rows of what was retracted before have left the tables since
            query = query.where(table.c.id > self._emptied(pipeline))
        # recorded again after a crash, the newest event of a batch says the same
        told = {r["payload"]["batch"]: r["payload"]["moved"] for r in self._rows(query.order_by(table.c.id))}
        return [dict(item) for moved in told.values() for item in moved]

    def retracted_from(self, pipeline: str) -> dict[int, list[OffsetRange]]:
        """Return, by the batch that had redriven it, what was retracted of it since."""
        found: dict[int, list[OffsetRange]] = {}
        for item in self.retractions(pipeline):
            if item["epoch"] == REDRIVEN:
                spans = [OffsetRange(item["topic"], item["partition"], *span) for span in item["ranges"]]
                found.setdefault(item["batch"], []).extend(spans)
        return found

    def times(self, pipeline: str) -> list[Times]:
        """Return the known record times in the order of offsets; ranges may overlap."""
        table = schema.times
        query = sa.select(table).where(table.c.pipeline == pipeline)
        rows = self._rows(query.order_by(table.c.topic, table.c.partition, table.c.start, table.c.end))
        return [Times(OffsetRange.of(r), r["first"], r["last"]) for r in rows]

    def reached(self, pipeline: str, *, ever: bool = False) -> Positions:
        """Return the live pipeline's committed positions, according to the accounts.

        Parameters
        ----------
        ever
            How far each partition was read or lost at all, whatever became of it since.
        """
        table = schema.account
        if not ever:
            return self._ends(table, pipeline, table.c.epoch > REDRIVEN, table.c.closed.is_(None))
        found = self._ends(table, pipeline)
        for topic, parts in self._ends(schema.lost, pipeline).items():
            ends = found.setdefault(topic, {})
            ends.update({p: max(end, ends.get(p, 0)) for p, end in parts.items()})
        return found

    def furthest(self, pipeline: str, epoch: int, *, batches: int = 100) -> Positions:
        """Return the ends of an epoch's newest committed batches, for the partitions that they read."""
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

    def _ends(self, table: sa.Table, pipeline: str, *which: sa.ColumnElement[bool]) -> Positions:
        """Return the greatest end of each partition, among the rows that meet conditions.

        The index is skipped through from partition to partition (https://wiki.postgresql.org/wiki/Loose_indexscan), so
        the cost depends on the number of partitions, and not on that of runs.
        """
        own = table.c.pipeline == pipeline

        def first(column: sa.ColumnElement[Any], *at: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
            return sa.select(sa.func.min(column)).where(own, *at).scalar_subquery()

        topics = sa.select(first(table.c.topic).label("topic")).cte("topics", recursive=True)
        topics = topics.union_all(
            sa.select(first(table.c.topic, table.c.topic > topics.c.topic)).where(topics.c.topic.is_not(None))
        )
        here = table.c.topic == topics.c.topic
        parts = sa.select(topics.c.topic, first(table.c.partition, here).label("partition")).cte(
            "parts", recursive=True
        )
        here = table.c.topic == parts.c.topic
        behind = first(table.c.partition, here, table.c.partition > parts.c.partition)
        parts = parts.union_all(sa.select(parts.c.topic, behind).where(parts.c.partition.is_not(None)))
        here = sa.and_(own, table.c.topic == parts.c.topic, table.c.partition == parts.c.partition)
        last = sa.select(sa.func.max(table.c.end)).where(here, *which).scalar_subquery()
        ends = Positions()
        for r in self._rows(sa.select(parts.c.topic, parts.c.partition, last.label("end"))):
            if r["end"] is not None:
                ends.setdefault(r["topic"], {})[int(r["partition"])] = int(r["end"])
        return ends

    def epoch(self, pipeline: str) -> Epoch:
        """Return the newest epoch; for a pipeline that never ran, epoch 1 with the direct route."""
        table = schema.epoch
        query = sa.select(table).where(table.c.pipeline == pipeline).order_by(table.c.epoch.desc()).limit(1)
        for row in self._rows(query):
            positions = row["positions"]
            if positions is not None:
                positions = {t: {int(p): int(o) for p, o in parts.items()} for t, parts in positions.items()}
            return Epoch(int(row["epoch"]), Route(row["lineage"]), positions)
        return Epoch(1, Route.DIRECT, None)

    def resets(self, pipeline: str) -> Resets:
        """Return the resets and failovers of a pipeline."""
        table = schema.event
        query = sa.select(table.c.run, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type == "PipelineReset"
        )
        return Resets([(row["run"], dict(row["payload"])) for row in self._rows(query.order_by(table.c.id))])

    def last_batch(self, pipeline: str, epoch: int) -> BatchRow | None:
        """Return the newest committed batch of an epoch."""
        table = schema.batch
        query = sa.select(table).where(
            table.c.pipeline == pipeline, table.c.epoch == epoch, table.c.state == "committed"
        )
        rows = self._rows(query.order_by(table.c.batch.desc()).limit(1))
        return BatchRow(**rows[0]) if rows else None

    def last_batches(self, pipeline: str) -> dict[int, int]:
        """Return, by epoch, the number of its newest committed batch."""
        table = schema.batch
        query = sa.select(table.c.epoch, sa.func.max(table.c.batch).label("last"))
        query = query.where(table.c.pipeline == pipeline, table.c.state == "committed").group_by(table.c.epoch)
        return {int(r["epoch"]): int(r["last"]) for r in self._rows(query)}

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

    def last_sealed(self, pipeline: str, epoch: int) -> int:
        """Return the newest sealed batch of an epoch; -1 if there is none."""
        table = schema.sealed
        query = sa.select(sa.func.max(table.c.batch).label("batch"))
        rows = self._rows(query.where(table.c.pipeline == pipeline, table.c.epoch == epoch))
        return -1 if rows[0]["batch"] is None else int(rows[0]["batch"])

    def intervals(self, pipeline: str, interval: str | None = None) -> list[IntervalRow]:
        """Return the intervals that were resolved, ordered by their numbers; with a key, that one alone."""
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

    def interval_keys(self, pipeline: str) -> dict[int, str]:
        """Return the keys of the intervals that were resolved, by their numbers."""
        table = schema.interval
        query = sa.select(table.c.number, table.c.interval).where(table.c.pipeline == pipeline)
        return {int(r["number"]): r["interval"] for r in self._rows(query.order_by(table.c.number))}

    def _given_up(self, pipeline: str, run_id: str) -> set[tuple[int, int]]:
        """Return epoch and number of the batches of a run that a user gave up."""
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type == "BatchGivenUp"
        )
        return {(row["payload"]["batch"][0], row["payload"]["batch"][1]) for row in self._rows(query)}
