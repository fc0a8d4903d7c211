"""Applies events to the derived tables; nothing else changes these tables.

Applying an event is idempotent, so that a fact may be recorded again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

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


def project(connection: sa.Connection, event: Mapping[str, Any]) -> None:
    """Apply one event."""
    runs = schema.run
    this_run = sa.and_(runs.c.pipeline == event["pipeline"], runs.c.run == event["run"])
    payload = event["payload"]
    match event["type"]:
        case "RunPlanned":
            _plan(connection, event, this_run)
        case "EpochOpened":
            _put(
                connection,
                schema.epoch,
                {"pipeline": event["pipeline"], "epoch": payload["epoch"]},
                {
                    "lineage": payload["lineage"], "positions": payload["positions"] or sa.null(),
                    "run": event["run"], "at": event["at"],
                },
            )  # fmt: skip
        case "PipelineReset":
            resets.apply(connection, event)
            _note(connection, this_run, resets.told(payload))
        case "IntervalResolved":
            _put(
                connection,
                schema.interval,
                {"pipeline": event["pipeline"], "number": payload["number"], "interval": payload["interval"]},
                {
                    "ranges": payload["ranges"], "whole": payload["whole"], "topic_ids": payload["topic_ids"],
                    "run": event["run"], "at": event["at"],
                },
            )  # fmt: skip
        case "Degraded":
            _note(connection, this_run, payload["note"])
        case "SchemaEvolved":
            added = [f"{c['column']} {c['type']}" for c in payload["added"] if "was" not in c]
            widened = [f"{c['column']} from {c['was']} to {c['type']}" for c in payload["added"] if "was" in c]
            for what, names in (("added to", added), ("widened in", widened)):
                if names:
                    _note(connection, this_run, f"columns {what} the sink: {', '.join(names)}")
        case "SegmentSealed":
            _put(
                connection,
                schema.sealed,
                _batch_key(event),
                {
                    "run": event["run"], "at": event["at"], "records": payload["records"],
                    "segments": len(payload["segments"]), "bytes": payload["bytes"],
                },
            )  # fmt: skip
        case "SegmentsCleaned":
            table = schema.sealed
            for gone in payload["batches"]:
                connection.execute(
                    table.update()
                    .where(
                        table.c.pipeline == event["pipeline"],
                        table.c.epoch == gone["epoch"],
                        table.c.batch == gone["batch"],
                    )
                    .values(segments=gone["segments"], records=gone["records"], bytes=gone["bytes"])
                )
        case "BatchStarted":
            _put_batch(connection, event, "started")
        case "BatchCommitted":
            _put_batch(connection, event, "committed")
            key = _batch_key(event)
            table = schema.account
            connection.execute(table.delete().where(*(table.c[k] == v for k, v in key.items())))
            if payload["accounts"]:
                shared = {**key, "run": event["run"], "of": None, "replaced": 0, "replaced_quarantined": 0}
                rows = [{k: v for k, v in a.items() if k != "times"} for a in payload["accounts"]]
                connection.execute(table.insert(), [{**shared, **row} for row in rows])
            of = [(a["topic"], a["partition"], *t) for a in payload["accounts"] for t in a.get("times") or ()]
            _put_times(connection, event["pipeline"], of)
        case "TimesFound":
            _put_times(connection, event["pipeline"], payload["times"])
        case "RangeLost":
            _lose(connection, event)
        case "RangeRedriven":
            for span in payload["ranges"] if payload["of"] == "lost" else []:
                # a redrive whose driver died may be recorded after its loss was acknowledged: the rows are there
                for was in ("open", "acknowledged"):
                    _mark(connection, event["pipeline"], OffsetRange(*span), was, "redriven", event["run"])
        case "OriginsSettled":
            for span in payload["ranges"]:  # what was open is in the table now, by way of a mirror
                _mark(connection, event["pipeline"], OffsetRange(*span), "open", "mirrored", event["run"])
        case "RangeRetracted":
            _retract(connection, event)
        case "LossAcknowledged":
            for span in payload["ranges"]:
                _mark(connection, event["pipeline"], OffsetRange(*span), payload["was"], payload["is"])
        case "Judged":
            connection.execute(
                runs.update().where(this_run).values(verdict=payload["verdict"], judgement=payload["judgement"])
            )
        case "VerdictAccepted":
            _note(connection, this_run, f"the verdict {payload['verdict']} was accepted: {payload['reason']}")
        case "NormalSet":
            _note(connection, this_run, f"what is normal begins with this run: {payload['reason']}")
        case "BatchGivenUp":
            _note(connection, this_run, f"batch {payload['batch'][1]} was given up: {payload['reason']}")
        case "Announced":
            batches = schema.batch
            for number, last in payload["upto"]:
                connection.execute(
                    batches.update()
                    .where(
                        batches.c.pipeline == event["pipeline"],
                        batches.c.epoch == number,
                        batches.c.batch <= last,
                        batches.c.state == "committed",
                        batches.c.announced.is_(None),
                    )
                    .values(announced=event["run"])
                )
        case "RunClosed":
            values = {"state": payload["state"], "closed_at": event["at"], "error": payload["error"] or sa.null()}
            if payload["seconds"] is not None:
                values["seconds"] = payload["seconds"]
            if payload["verdict"] is not None:
                values["verdict"] = payload["verdict"]
            connection.execute(runs.update().where(this_run).values(**values))


def _note(connection: sa.Connection, this_run: sa.ColumnElement[bool], note: str) -> None:
    """Add a line to what the list of runs tells of a run."""
    notes = schema.run.c.notes
    found = connection.execute(sa.select(notes).where(this_run)).scalar()
    if found is not None and note not in found:
        connection.execute(schema.run.update().where(this_run).values(notes=[*found, note]))


def _plan(connection: sa.Connection, event: Mapping[str, Any], this_run: sa.ColumnElement[bool]) -> None:
    payload, runs = event["payload"], schema.run
    again = {
        "state": "open", "recovery": payload["recovery"], "epoch": payload["epoch"],
        "topic_ids": payload["topic_ids"], "closed_at": None, "error": sa.null(),
        "interval": payload.get("interval"), "reason": payload.get("reason"),
        # rows of earlier attempts are validated again, together with those of this one
        "verdict": None, "judgement": sa.null(),
    }  # fmt: skip
    updated = connection.execute(runs.update().where(this_run).values(attempts=runs.c.attempts + 1, **again))
    if updated.rowcount == 0:
        fresh = {"kind": payload["kind"], "attempts": 1, "opened_at": event["at"], "sequence": event["id"], "notes": []}
        connection.execute(
            runs.insert().values(pipeline=event["pipeline"], run=event["run"], **again, **fresh)
        )  # fmt: skip


def _batch_key(event: Mapping[str, Any]) -> dict[str, Any]:
    payload = event["payload"]
    return {"pipeline": event["pipeline"], "epoch": payload["epoch"], "batch": payload["batch"]}


def _put_batch(connection: sa.Connection, event: Mapping[str, Any], state: str) -> None:
    _put(connection, schema.batch, _batch_key(event), {"run": event["run"], "state": state, "at": event["at"]})


def _put(connection: sa.Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    updated = connection.execute(table.update().where(*(table.c[k] == v for k, v in key.items())).values(**values))
    if updated.rowcount == 0:
        connection.execute(table.insert().values(**key, **values))


def _put_times(connection: sa.Connection, pipeline: str, found: Iterable[Sequence[Any]]) -> None:
    names = ("topic", "partition", "start", "end", "first", "last")
    # a range that is told twice has the times that were told last
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


def _lose(connection: sa.Connection, event: Mapping[str, Any]) -> None:
    payload, table = event["payload"], schema.lost
    shared = {"pipeline": event["pipeline"], "epoch": payload["epoch"], "batch": payload["batch"]}
    for item in payload["ranges"]:
        span = OffsetRange.of(item)
        known = sa.select(table.c.start).where(
            _lost_in(event["pipeline"], span),
            table.c.epoch == payload["epoch"],
            table.c.batch == payload["batch"],
        )
        if connection.execute(known).first() is not None:
            continue  # recorded before, and perhaps redriven since
        connection.execute(
            table.insert().values(**shared, run=event["run"], at=event["at"], state="open", **item)
        )  # fmt: skip


def _retract(connection: sa.Connection, event: Mapping[str, Any]) -> None:
    """Count what was retracted as lost in the accounts that had written it, and open its ranges."""
    payload, pipeline = event["payload"], event["pipeline"]
    batches, table = schema.batch, schema.account
    done = sa.select(batches.c.run).where(
        *(batches.c[k] == v for k, v in _batch_key(event).items()), batches.c.state == "committed"
    )
    if connection.execute(done).first() is not None:
        return  # recorded before, and perhaps redriven since
    reason, told = f"retracted: {payload['reason']}", dict[str, int]()
    for item in payload["moved"]:
        where = ("epoch", "batch", "topic", "partition", "start")
        counts = {name: item[name] for name in ("written", "filtered", "absent")}
        connection.execute(
            table.update()
            .where(table.c.pipeline == pipeline, *(table.c[k] == item[k] for k in where))
            .values(
                **{name: table.c[name] - number for name, number in counts.items()},
                lost=table.c.lost + sum(counts.values()),
            )
        )
        told[item["run"]] = told.get(item["run"], 0) + sum(counts.values())
        for start, end in item["ranges"]:
            _open_again(connection, event, item, OffsetRange(item["topic"], item["partition"], start, end), reason)
    for run, number in told.items():
        of_run = sa.and_(schema.run.c.pipeline == pipeline, schema.run.c.run == run)
        _note(connection, of_run, f"run {event['run']} retracted {number:,} offsets: {payload['reason']}")


def _open_again(
    connection: sa.Connection, event: Mapping[str, Any], item: Mapping[str, Any], span: OffsetRange, reason: str
) -> None:
    """Open a range as lost: what was lost before and redriven, and what never was."""
    pipeline, table = event["pipeline"], schema.lost
    known = [
        OffsetRange.of(dict(row))
        for row in connection.execute(sa.select(table).where(_lost_in(pipeline, span))).mappings()
    ]
    _mark(connection, pipeline, span, "redriven", "open", reason=reason)
    for part in subtract([span], known):
        connection.execute(
            table.insert().values(
                pipeline=pipeline, epoch=item["epoch"], batch=item["batch"], run=item["run"], at=event["at"],
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
