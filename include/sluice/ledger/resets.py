"""Applies the event ``PipelineReset`` to the derived tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ranges import OffsetRange, describe

__all__ = ["SKIPPING", "apply", "told"]

SKIPPING = -1
"""The batch number of the account of what a reset skipped: it stands before the first batch of the new epoch."""

_MOST = 8
"""Maximum number of partitions whose beginning a note names; the event has all."""


def apply(connection: sa.Connection, event: Mapping[str, Any]) -> None:
    """Open the new epoch, account for what was skipped, and close the accounts whose rows left the tables."""
    payload, pipeline = event["payload"], event["pipeline"]
    epochs = schema.epoch
    known = sa.select(epochs.c.epoch).where(epochs.c.pipeline == pipeline, epochs.c.epoch == payload["epoch"])
    if connection.execute(known).first() is not None:
        return  # recorded before
    connection.execute(
        epochs.insert().values(
            pipeline=pipeline, epoch=payload["epoch"], lineage=payload["lineage"], positions=payload["positions"],
            run=event["run"], at=event["at"],
        )
    )  # fmt: skip
    if payload["truncated"]:
        _close(connection, event)
    _skip(connection, event)
    runs = schema.run
    connection.execute(
        runs.update()
        .where(runs.c.pipeline == pipeline, runs.c.run == event["run"])
        .values(topic_ids=payload["topic_ids"], epoch=payload["epoch"])
    )


def _close(connection: sa.Connection, event: Mapping[str, Any]) -> None:
    payload, pipeline = event["payload"], event["pipeline"]
    accounts, batches, times, lost = schema.account, schema.batch, schema.times, schema.lost
    for number, last in payload["held"]:  # the sink was replaced, and counts these batches from there on again
        for table in (accounts, batches):
            connection.execute(
                table.delete().where(table.c.pipeline == pipeline, table.c.epoch == number, table.c.batch > last)
            )
    connection.execute(
        accounts.update()
        .where(accounts.c.pipeline == pipeline, accounts.c.closed.is_(None))
        .values(closed=event["run"])
    )
    connection.execute(
        batches.update()
        .where(batches.c.pipeline == pipeline, batches.c.state == "committed", batches.c.announced.is_(None))
        .values(announced=event["run"])  # no event has to tell of rows that are gone
    )
    connection.execute(lost.delete().where(lost.c.pipeline == pipeline))
    connection.execute(times.delete().where(times.c.pipeline == pipeline, times.c.topic.in_(payload["recreated"])))


def _skip(connection: sa.Connection, event: Mapping[str, Any]) -> None:
    payload = event["payload"]
    shared = {"pipeline": event["pipeline"], "epoch": payload["epoch"], "batch": SKIPPING, "run": event["run"]}
    for item in payload["skipped"]:
        span = OffsetRange(*item)
        why = "failover" if payload.get("cluster") else "reset"
        place = {"topic": span.topic, "partition": span.partition, "start": span.start, "end": span.end}
        counts = {"written": 0, "filtered": 0, "quarantined": 0, "absent": 0, "lost": len(span)}
        connection.execute(schema.account.insert().values(**shared, **place, **counts))
        connection.execute(
            schema.lost.insert().values(
                **shared, **place, at=event["at"], reason=f"{why}: {payload['reason']}", sample=sa.null(), state="open"
            )
        )


def told(payload: Mapping[str, Any]) -> str:
    """Return what the list of runs tells of a reset."""
    begins = [
        f"{topic}-{number}: {offset}"
        for topic, parts in sorted(payload["positions"].items())
        for number, offset in sorted(parts.items(), key=lambda item: int(item[0]))
    ]
    at = ", ".join(begins[:_MOST]) + (f" and {len(begins) - _MOST} more" if len(begins) > _MOST else "")
    gone = "; the sink has no rows of the pipeline now" if payload["truncated"] else ""
    if payload["removed"]:
        gone = f"; the pipeline's rows left the sink ({payload['removed']:,} offsets)"
    skipped = [OffsetRange(*item) for item in payload["skipped"]]
    left = f"; {sum(map(len, skipped)):,} offsets are open as lost: {describe(skipped)}" if skipped else ""
    also = "".join(f"; {note}" for note in payload["notes"])
    there = payload.get("cluster")
    to = f"from {there['from']} to {there['to']}: " if there else ""
    return f"{to}epoch {payload['epoch']} begins at {at}{gone}{left}{also}. Reason: {payload['reason']}"
