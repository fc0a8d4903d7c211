"""Applies the event ``PipelineReset`` to the derived tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.events import PipelineReset
from sluice.ranges import describe

if TYPE_CHECKING:
    from sluice.ledger.projection import Recorded

__all__ = ["SKIPPING", "apply", "described"]

SKIPPING = -1
"""The batch number of the account of what a reset skipped: it stands before the first batch of the new epoch."""

_MOST = 8
"""Maximum number of partitions whose beginning a note names; the event has all."""


def apply(connection: sa.Connection, where: Recorded, event: PipelineReset) -> None:
    """Open the new epoch, account for what was skipped, and close the accounts whose rows left the tables."""
    epochs = schema.epoch
    known = sa.select(epochs.c.epoch).where(epochs.c.pipeline == where.pipeline, epochs.c.epoch == event.epoch)
    if connection.execute(known).first() is not None:
        return  # recorded before
    payload = event.payload()
    connection.execute(
        epochs.insert().values(
            pipeline=where.pipeline, epoch=event.epoch, lineage=payload["lineage"], positions=payload["positions"],
            **where.stamp,
        )
    )  # fmt: skip
    if event.truncated:
        _close(connection, where, event)
    _skip(connection, where, event)
    values = {"topic_ids": payload["topic_ids"], "epoch": event.epoch}
    connection.execute(schema.run.update().where(where.this_run).values(**values))


def _close(connection: sa.Connection, where: Recorded, event: PipelineReset) -> None:
    pipeline = where.pipeline
    accounts, batches, times, lost = schema.account, schema.batch, schema.times, schema.lost
    for number, last in event.held:  # the sink was replaced, and counts these batches from there on again
        for table in (accounts, batches):
            connection.execute(
                table.delete().where(table.c.pipeline == pipeline, table.c.epoch == number, table.c.batch > last)
            )
    connection.execute(
        accounts.update().where(accounts.c.pipeline == pipeline, accounts.c.closed.is_(None)).values(closed=where.run)
    )
    connection.execute(
        batches.update()
        .where(batches.c.pipeline == pipeline, batches.c.state == "committed", batches.c.announced.is_(None))
        .values(announced=where.run)  # no event has to tell of rows that are gone
    )
    connection.execute(lost.delete().where(lost.c.pipeline == pipeline))
    connection.execute(times.delete().where(times.c.pipeline == pipeline, times.c.topic.in_(list(event.recreated))))


def _skip(connection: sa.Connection, where: Recorded, event: PipelineReset) -> None:
    shared = {"pipeline": where.pipeline, "epoch": event.epoch, "batch": SKIPPING, "run": where.run}
    for span in event.skipped:
        why = "failover" if event.cluster else "reset"
        place = {"topic": span.topic, "partition": span.partition, "start": span.start, "end": span.end}
        counts = {"written": 0, "filtered": 0, "quarantined": 0, "absent": 0, "lost": len(span)}
        connection.execute(schema.account.insert().values(**shared, **place, **counts))
        connection.execute(
            schema.lost.insert().values(
                **shared, **place, at=where.at, reason=f"{why}: {event.reason}", sample=sa.null(), state="open"
            )
        )


def described(event: PipelineReset) -> str:
    """Return a reset in words."""
    begins = [
        f"{topic}-{number}: {offset}"
        for topic, parts in sorted(event.positions.items())
        for number, offset in sorted(parts.items())
    ]
    at = ", ".join(begins[:_MOST]) + (f" and {len(begins) - _MOST} more" if len(begins) > _MOST else "")
    gone = "; the sink has no rows of the pipeline now" if event.truncated else ""
    if event.removed:
        gone = f"; the pipeline's rows left the sink ({event.removed:,} offsets)"
    skipped = event.skipped
    left = f"; {sum(map(len, skipped)):,} offsets are open as lost: {describe(skipped)}" if skipped else ""
    also = "".join(f"; {note}" for note in event.notes)
    to = f"from {event.cluster['from']} to {event.cluster['to']}: " if event.cluster else ""
    return f"{to}epoch {event.epoch} begins at {at}{gone}{left}{also}. Reason: {event.reason}"
