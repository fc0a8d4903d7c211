"""Applies events to the derived tables; nothing else changes these tables.

Applying an event is idempotent, so that a fact may be recorded again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from sluice.facts import ChangedColumns, Origins
from sluice.ledger import events as ev
from sluice.ledger import resets, schema
from sluice.ranges import OffsetRange, subtract

__all__ = ["PAGE", "clear", "project", "project_next", "rebuild"]


PAGE = 1000
"""Events that are projected at a time."""


def rebuild(connection: sa.Connection) -> int:
    """Recreate the derived tables from the events; return the number of events."""
    clear(connection)
    count, last = 0, 0
    while page := project_next(connection, last):
        last, count = page[-1], count + len(page)
    return count


def clear(connection: sa.Connection) -> None:
    """Empty the derived tables."""
    for table in schema.DERIVED:
        connection.execute(table.delete())


def project_next(connection: sa.Connection, last: int) -> list[int]:
    """Apply the next :data:`PAGE` events behind an id, in their order; return their ids."""
    events = schema.event
    query = sa.select(events).where(events.c.id > last).order_by(events.c.id).limit(PAGE)
    rows = connection.execute(query).mappings().all()
    for row in rows:
        project(connection, dict(row))
    return [row["id"] for row in rows]


class Recorded(NamedTuple):
    """Where and when an event was recorded: its id, its time, its pipeline and its run."""

    id: int
    at: str
    pipeline: str
    run: str

    @property
    def this_run(self) -> sa.ColumnElement[bool]:
        """The condition that a row of the table of runs is that of the event."""
        return sa.and_(schema.run.c.pipeline == self.pipeline, schema.run.c.run == self.run)

    def key(self, event: ev.BatchEvent) -> dict[str, Any]:
        """Return the key of the event's batch."""
        return {"pipeline": self.pipeline, "epoch": event.epoch, "batch": event.batch}

    @property
    def stamp(self) -> dict[str, Any]:
        """Run and time, as the derived tables have them."""
        return {"run": self.run, "at": self.at}


def project(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Apply one event, as the table of events has it."""
    event = ev.parsed(row["type"], row["payload"])
    handler = None if event is None else _HANDLERS.get(type(event))
    if handler is not None:
        handler(connection, Recorded(row["id"], row["at"], row["pipeline"], row["run"]), event)


def _plan(connection: sa.Connection, where: Recorded, event: ev.RunPlanned) -> None:
    runs = schema.run
    again: dict[str, Any] = {
        "state": "open", "recovery": event.recovery, "epoch": event.epoch, "topic_ids": dict(event.topic_ids),
        "closed_at": None, "error": sa.null(), "interval": event.interval, "reason": event.reason,
        # rows of earlier attempts are validated again, together with those of this one
        "verdict": None, "judgement": sa.null(),
        # an interval is replaced as a whole by each attempt, and its account is that of the last one
        **({"notes": []} if event.kind == "interval" else {}),
    }  # fmt: skip
    updated = connection.execute(runs.update().where(where.this_run).values(attempts=runs.c.attempts + 1, **again))
    if updated.rowcount == 0:
        fresh = {"kind": event.kind, "attempts": 1, "opened_at": where.at, "sequence": where.id, "notes": []}
        connection.execute(runs.insert().values(pipeline=where.pipeline, run=where.run, **again | fresh))


def _open_epoch(connection: sa.Connection, where: Recorded, event: ev.EpochOpened) -> None:
    values = {"lineage": event.lineage.value, "positions": event.payload()["positions"] or sa.null(), **where.stamp}
    _put(connection, schema.epoch, {"pipeline": where.pipeline, "epoch": event.epoch}, values)


def _reset(connection: sa.Connection, where: Recorded, event: ev.PipelineReset) -> None:
    resets.apply(connection, where, event)
    _note(connection, where.this_run, resets.described(event))


def _resolve(connection: sa.Connection, where: Recorded, event: ev.IntervalResolved) -> None:
    told = event.payload()
    key = {"pipeline": where.pipeline, **{name: told[name] for name in ("number", "interval")}}
    values = {name: told[name] for name in ("ranges", "whole", "topic_ids")}
    _put(connection, schema.interval, key, {**values, **where.stamp})


def _degrade(connection: sa.Connection, where: Recorded, event: ev.Degraded) -> None:
    _note(connection, where.this_run, event.note)


def _record_fact(connection: sa.Connection, where: Recorded, event: ev.FactRecorded) -> None:
    fact = event.fact
    if isinstance(fact, ChangedColumns):
        added = [f"{c['column']} {c['type']}" for c in fact.added if "was" not in c]
        widened = [f"{c['column']} from {c['was']} to {c['type']}" for c in fact.added if "was" in c]
        for what, names in (("added to", added), ("widened in", widened)):
            if names:
                _note(connection, where.this_run, f"columns {what} the sink: {', '.join(names)}")
    elif isinstance(fact, Origins):
        for span in fact.ranges:  # what was open is in the table now, by way of a mirror
            _mark(connection, where.pipeline, OffsetRange(*span), "open", "mirrored", where.run)


def _seal(connection: sa.Connection, where: Recorded, event: ev.SegmentSealed) -> None:
    values = {"records": event.records, "segments": len(event.segments), "bytes": event.bytes, **where.stamp}
    _put(connection, schema.sealed, where.key(event), values)


def _clean(connection: sa.Connection, where: Recorded, event: ev.SegmentsCleaned) -> None:
    table = schema.sealed
    for gone in event.batches:
        key = {"pipeline": where.pipeline, "epoch": gone["epoch"], "batch": gone["batch"]}
        values = {name: gone[name] for name in ("segments", "records", "bytes")}
        connection.execute(table.update().where(_same(table, key)).values(**values))


def _start(connection: sa.Connection, where: Recorded, event: ev.BatchStarted) -> None:
    _put(connection, schema.batch, where.key(event), {"state": "started", **where.stamp})


def _commit(connection: sa.Connection, where: Recorded, event: ev.BatchCommitted) -> None:
    key, table = where.key(event), schema.account
    _put(connection, schema.batch, key, {"state": "committed", **where.stamp})
    connection.execute(table.delete().where(_same(table, key)))
    if event.accounts:
        shared = {**key, "run": where.run, "of": None, "replaced": 0, "replaced_quarantined": 0}
        rows = [{k: v for k, v in account.items() if k != "times"} for account in event.accounts]
        connection.execute(table.insert(), [{**shared, **row} for row in rows])
    _put_times(
        connection,
        where.pipeline,
        [(a["topic"], a["partition"], *times) for a in event.accounts for times in a.get("times") or ()],
    )


def _find_times(connection: sa.Connection, where: Recorded, event: ev.TimesFound) -> None:
    _put_times(connection, where.pipeline, event.payload()["times"])


def _redrive(connection: sa.Connection, where: Recorded, event: ev.RangeRedriven) -> None:
    for span in event.ranges if event.of == "lost" else []:
        # a redrive whose driver died may be recorded after its loss was acknowledged: the rows are there
        for was in ("open", "acknowledged"):
            _mark(connection, where.pipeline, span, was, "redriven", where.run)


def _acknowledge(connection: sa.Connection, where: Recorded, event: ev.LossAcknowledged) -> None:
    for span in event.ranges:
        _mark(connection, where.pipeline, span, event.was, event.now)


def _judge(connection: sa.Connection, where: Recorded, event: ev.Judged) -> None:
    values = {"verdict": event.verdict, "judgement": dict(event.judgement)}
    connection.execute(schema.run.update().where(where.this_run).values(**values))


def _accept(connection: sa.Connection, where: Recorded, event: ev.VerdictAccepted) -> None:
    _note(connection, where.this_run, f"the verdict {event.verdict} was accepted: {event.reason}")


def _set_normal(connection: sa.Connection, where: Recorded, event: ev.NormalSet) -> None:
    _note(connection, where.this_run, f"what is normal begins with this run: {event.reason}")


def _give_up(connection: sa.Connection, where: Recorded, event: ev.BatchGivenUp) -> None:
    _note(connection, where.this_run, f"batch {event.batch[1]} was given up: {event.reason}")


def _announce(connection: sa.Connection, where: Recorded, event: ev.Announced) -> None:
    batches = schema.batch
    for number, last in event.upto:
        connection.execute(
            batches.update()
            .where(
                batches.c.pipeline == where.pipeline,
                batches.c.epoch == number,
                batches.c.batch <= last,
                batches.c.state == "committed",
                batches.c.announced.is_(None),
            )
            .values(announced=where.run)
        )


def _close(connection: sa.Connection, where: Recorded, event: ev.RunClosed) -> None:
    error = dict(event.error) if event.error else sa.null()
    values: dict[str, Any] = {"state": event.state, "closed_at": where.at, "error": error}
    given = {"seconds": event.seconds, "verdict": event.verdict}
    values |= {name: value for name, value in given.items() if value is not None}
    connection.execute(schema.run.update().where(where.this_run).values(**values))


def _note(connection: sa.Connection, this_run: sa.ColumnElement[bool], note: str) -> None:
    """Add a line to the notes of a run."""
    notes = schema.run.c.notes
    found = connection.execute(sa.select(notes).where(this_run)).scalar()
    if found is not None and note not in found:
        connection.execute(schema.run.update().where(this_run).values(notes=[*found, note]))


def _same(table: sa.Table, key: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == value for name, value in key.items()))


def _put(connection: sa.Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    updated = connection.execute(table.update().where(_same(table, key)).values(**values))
    if updated.rowcount == 0:
        connection.execute(table.insert().values(**key, **values))


def _put_times(connection: sa.Connection, pipeline: str, found: Iterable[Sequence[Any]]) -> None:
    names = ("topic", "partition", "start", "end", "first", "last")
    # of a range that is found twice, the later times count
    rows = {tuple(item[:4]): {"pipeline": pipeline, **dict(zip(names, item, strict=True))} for item in found}
    if not rows:
        return
    table, key = schema.times, ("pipeline", *names[:4])
    same = table.delete().where(*(table.c[k] == sa.bindparam(f"of_{k}") for k in key))
    connection.execute(same, [{f"of_{k}": row[k] for k in key} for row in rows.values()])
    connection.execute(table.insert(), list(rows.values()))


def _lost_in(pipeline: str, span: OffsetRange) -> sa.ColumnElement[bool]:
    table = schema.lost
    return sa.and_(
        table.c.pipeline == pipeline,
        table.c.topic == span.topic,
        table.c.partition == span.partition,
        table.c.start < span.end,
        table.c.end > span.start,
    )


def _lose(connection: sa.Connection, where: Recorded, event: ev.RangeLost) -> None:
    table, key = schema.lost, where.key(event)
    for item in event.ranges:
        known = sa.select(table.c.start).where(_lost_in(where.pipeline, OffsetRange.of(item)), _same(table, key))
        if connection.execute(known).first() is not None:
            continue  # recorded before, and perhaps redriven since
        connection.execute(table.insert().values(**key, **where.stamp, state="open", **item))


def _retract(connection: sa.Connection, where: Recorded, event: ev.RangeRetracted) -> None:
    """Count what was retracted as lost in the accounts that had written it, and open its ranges."""
    batches, table, pipeline = schema.batch, schema.account, where.pipeline
    done = sa.select(batches.c.run).where(_same(batches, where.key(event)), batches.c.state == "committed")
    if connection.execute(done).first() is not None:
        return  # recorded before, and perhaps redriven since
    reason, told = f"retracted: {event.reason}", dict[str, int]()
    for item in event.moved:
        place = ("epoch", "batch", "topic", "partition", "start")
        counts = {name: item[name] for name in ("written", "filtered", "absent")}
        connection.execute(
            table.update()
            .where(table.c.pipeline == pipeline, *(table.c[k] == item[k] for k in place))
            .values(
                **{name: table.c[name] - number for name, number in counts.items()},
                lost=table.c.lost + sum(counts.values()),
            )
        )
        told[item["run"]] = told.get(item["run"], 0) + sum(counts.values())
        for start, end in item["ranges"]:
            _open_again(connection, where, item, OffsetRange(item["topic"], item["partition"], start, end), reason)
    for run, number in told.items():
        of_run = sa.and_(schema.run.c.pipeline == pipeline, schema.run.c.run == run)
        _note(connection, of_run, f"run {where.run} retracted {number:,} offsets: {event.reason}")


def _open_again(
    connection: sa.Connection, where: Recorded, item: Mapping[str, Any], span: OffsetRange, reason: str
) -> None:
    """Open a range as lost: what was lost before and redriven, and what never was."""
    pipeline, table = where.pipeline, schema.lost
    known = [
        OffsetRange.of(dict(row))
        for row in connection.execute(sa.select(table).where(_lost_in(pipeline, span))).mappings()
    ]
    _mark(connection, pipeline, span, "redriven", "open", reason=reason)
    for part in subtract([span], known):
        connection.execute(
            table.insert().values(
                pipeline=pipeline, epoch=item["epoch"], batch=item["batch"], run=item["run"], at=where.at,
                reason=reason, sample=sa.null(), state="open",
                topic=part.topic, partition=part.partition, start=part.start, end=part.end,
            )
        )  # fmt: skip


def _mark(
    connection: sa.Connection,
    pipeline: str,
    span: OffsetRange,
    was: str,
    now: str,
    by: str | None = None,
    *,
    reason: str | None = None,
) -> None:
    """Change the state of the parts of lost ranges that lie in a range; the rest of them stays as it was."""
    table = schema.lost
    rows = connection.execute(
        sa.select(table).where(_lost_in(pipeline, span), table.c.state == was)
    ).mappings().all()  # fmt: skip
    for row in rows:
        whole = OffsetRange.of(dict(row))
        common = whole.cut(span)
        if common is None:
            continue
        connection.execute(
            table.delete().where(*(table.c[k] == row[k] for k in ("pipeline", "topic", "partition", "start")))
        )
        kept = {k: row[k] for k in ("pipeline", "topic", "partition", "epoch", "batch", "run", "at", "reason")}
        sample = row["sample"] if row["sample"] is not None else sa.null()
        marked: dict[str, Any] = {"state": now, "redriven_by": by, **({} if reason is None else {"reason": reason})}
        parts = [(common, marked), *((rest, {"state": was}) for rest in subtract([whole], [common]))]
        for part, state in parts:
            connection.execute(
                table.insert().values({**kept, "sample": sample, "start": part.start, "end": part.end, **state})
            )  # fmt: skip


_HANDLERS: dict[type[ev.Event], Callable[[sa.Connection, Recorded, Any], None]] = {
    ev.Announced: _announce,
    ev.BatchCommitted: _commit,
    ev.BatchGivenUp: _give_up,
    ev.BatchStarted: _start,
    ev.Degraded: _degrade,
    ev.EpochOpened: _open_epoch,
    ev.FactRecorded: _record_fact,
    ev.IntervalResolved: _resolve,
    ev.Judged: _judge,
    ev.LossAcknowledged: _acknowledge,
    ev.NormalSet: _set_normal,
    ev.PipelineReset: _reset,
    ev.RangeLost: _lose,
    ev.RangeRedriven: _redrive,
    ev.RangeRetracted: _retract,
    ev.RunClosed: _close,
    ev.RunPlanned: _plan,
    ev.SegmentSealed: _seal,
    ev.SegmentsCleaned: _clean,
    ev.TimesFound: _find_times,
    ev.VerdictAccepted: _accept,
}
"""The handler of each event that changes a derived table."""
