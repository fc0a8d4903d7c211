"""Queries about verdicts."""

from __future__ import annotations

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.queries import LedgerQueries
from sluice.ledger.rows import RunRow

__all__ = ["Verdicts"]

_SETTLED = ("VerdictAccepted", "BatchGivenUp")


class Verdicts(LedgerQueries):
    """What was judged, what was not yet, and which failed verdicts somebody accepted."""

    def unjudged(self, pipeline: str) -> list[str]:
        """Return the ids of runs that died or failed and whose committed rows have no verdict yet, oldest first."""
        table, parts = schema.run, schema.account
        has_rows = sa.exists().where(
            parts.c.pipeline == table.c.pipeline, parts.c.run == table.c.run, parts.c.closed.is_(None)
        )
        query = sa.select(table.c.run).where(
            table.c.pipeline == pipeline,
            table.c.state.in_(("abandoned", "failed")),
            table.c.verdict.is_(None),
            has_rows,
        )
        return [r["run"] for r in self._rows(query.order_by(table.c.sequence))]

    def newest_judged(self, pipeline: str) -> RunRow | None:
        """Return the newest live run that was judged and had records; None if there is none."""
        table = schema.run
        query = sa.select(table).where(
            table.c.pipeline == pipeline,
            table.c.kind == "live",
            table.c.verdict.is_not(None),
            table.c.verdict != "empty",
        )
        rows = self._rows(query.order_by(table.c.sequence.desc()).limit(1))
        return RunRow(**rows[0]) if rows else None

    def settlement(self, pipeline: str, run_id: str) -> tuple[str, str] | None:
        """Return how a failed verdict of a run was settled, and why; None if it was not, since its newest attempt.

        Returns
        -------
        tuple
            The event, ``VerdictAccepted`` or ``BatchGivenUp``, and the reason.
        """
        table = schema.event
        query = sa.select(table.c.type, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type.in_(("RunPlanned", *_SETTLED))
        )
        rows = self._rows(query.order_by(table.c.id.desc()).limit(1))
        return (rows[0]["type"], str(rows[0]["payload"]["reason"])) if rows and rows[0]["type"] in _SETTLED else None

    def acceptance(self, pipeline: str, run_id: str) -> str | None:
        """Return why somebody accepted what a run wrote; None if nobody did since its newest attempt began."""
        found = self.settlement(pipeline, run_id)
        return found[1] if found is not None and found[0] == "VerdictAccepted" else None

    def settled_batch(self, pipeline: str, epoch: int, batch: int) -> tuple[str, str] | None:
        """Return how a batch that waited for somebody's decision was settled, and why, as :meth:`settlement`."""
        table = schema.event
        query = sa.select(table.c.type, table.c.payload).where(table.c.pipeline == pipeline, table.c.type.in_(_SETTLED))
        for row in self._rows(query.order_by(table.c.id.desc()).limit(100)):
            if row["payload"].get("batch") == [epoch, batch]:
                return row["type"], str(row["payload"]["reason"])
        return None
