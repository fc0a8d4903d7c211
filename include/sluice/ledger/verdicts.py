"""Queries about verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.queries import LedgerQueries
from sluice.ledger.rows import RunRow
from sluice.ranges import OffsetRange

__all__ = ["LateDecision", "Verdicts"]

_AT_ONCE = 500
_SETTLED = ("VerdictAccepted", "BatchGivenUp")


@dataclass(frozen=True)
class LateDecision:
    """A decision of a user on a batch that was committed the other way before."""

    batch: tuple[int, int]
    """Epoch and number."""
    run: str
    """The run that committed it."""
    event: str
    """``VerdictAccepted`` or ``BatchGivenUp``."""
    reason: str


class Verdicts(LedgerQueries):
    """Queries for verdicts: of runs that were judged, that wait for a verdict, and that a user accepted."""

    def unjudged(self, pipeline: str, kind: str) -> list[str]:
        """Return the ids of runs that died or failed and whose committed rows have no verdict yet, oldest first.

        A batch that was entered into the ledger after its run was judged was not judged with it.

        Parameters
        ----------
        kind
            Only runs of this kind: what an interval replaced says nothing of the live run after it.
        """
        table, parts = schema.run, schema.account
        has_rows = sa.exists().where(
            parts.c.pipeline == table.c.pipeline, parts.c.run == table.c.run, parts.c.closed.is_(None)
        )
        events, verdicts = schema.event.alias(), schema.event.alias()
        last = sa.select(sa.func.max(verdicts.c.id)).where(
            verdicts.c.pipeline == table.c.pipeline, verdicts.c.run == table.c.run, verdicts.c.type == "Judged"
        )
        since = sa.exists().where(
            events.c.pipeline == table.c.pipeline,
            events.c.run == table.c.run,
            events.c.type == "BatchCommitted",
            events.c.id > last.correlate(table).scalar_subquery(),
        )
        let_out = sa.exists().where(  # of records that an earlier run read
            events.c.pipeline == table.c.pipeline,
            events.c.run == table.c.run,
            events.c.type == "WindowsMoved",
            events.c.payload["rows"].as_integer() > 0,
        )
        query = sa.select(table.c.run).where(
            table.c.pipeline == pipeline,
            table.c.kind == kind,
            table.c.state.in_(("abandoned", "failed")),
            sa.or_(table.c.verdict.is_(None), since),
            sa.or_(has_rows, let_out),
        )
        return [r["run"] for r in self._rows(query.order_by(table.c.sequence))]

    def is_gated(self, pipeline: str, run_id: str) -> bool:
        """Return whether each batch of a run, in all of its attempts, was judged before it was committed."""
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type == "RunPlanned"
        )
        return all(row["payload"].get("gated", False) for row in self._rows(query))

    def newest_judged(self, pipeline: str) -> RunRow | None:
        """Return the live run that was judged, had records and was begun last; None if there is none.

        A run that is tried again is begun again. It is returned :meth:`as_judged`.
        """
        table, events = schema.run, schema.event
        plans = sa.select(events.c.id, events.c.run).where(events.c.pipeline == pipeline, events.c.type == "RunPlanned")
        seen, before = set[str](), sa.true()
        while page := self._rows(plans.where(before).order_by(events.c.id.desc()).limit(_AT_ONCE if seen else 20)):
            before = events.c.id < page[-1]["id"]
            some = [run for run in dict.fromkeys(row["run"] for row in page) if run not in seen]
            seen.update(some)
            ever = sa.select(events.c.run).where(events.c.pipeline == pipeline, events.c.type == "Judged")
            query = sa.select(table).where(
                table.c.pipeline == pipeline,
                table.c.run.in_(some),
                table.c.kind == "live",
                sa.or_(table.c.verdict.is_not(None), table.c.run.in_(ever.where(events.c.run.in_(some)))),
            )
            for row in sorted(self._rows(query), key=lambda row: some.index(row["run"])):
                found = self.as_judged(RunRow(**row))
                if found.verdict not in (None, "empty"):
                    return found
        return None

    def judged_before(self, pipeline: str, sequence: int) -> RunRow | None:
        """Return the newest live run before one that was judged and had records; None if there is none.

        It is returned :meth:`as_judged`. It is looked for among the last few hundred.

        Parameters
        ----------
        sequence
            The :attr:`~sluice.ledger.RunRow.sequence` of that one.
        """
        table = schema.run
        query = sa.select(table).where(
            table.c.pipeline == pipeline, table.c.kind == "live", table.c.sequence < sequence
        )
        for row in self._rows(query.order_by(table.c.sequence.desc()).limit(_AT_ONCE)):
            run = self.as_judged(RunRow(**row))
            if run.verdict not in (None, "empty"):
                return run
        return None

    def ever_waited(self, pipeline: str, runs: Sequence[str]) -> bool:
        """Return whether a batch of some runs, in any of their attempts, waited for a user's decision."""
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type == "Judged", table.c.run.in_(runs)
        )
        return any((row["payload"]["judgement"] or {}).get("waits") for row in self._rows(query))

    def as_judged(self, run: RunRow) -> RunRow:
        """Return a run with its newest verdict, also if that is of an earlier attempt: none since then was done.

        Its rows, or its batch that waits, are there whatever became of the attempts since. The epoch is that of the
        attempt that was judged.
        """
        if run.verdict is not None or run.state == "done":
            return run
        attempt = self._judged_attempt(run.pipeline, run.run)
        if attempt is None:
            return run
        plan, judged = attempt
        return replace(run, verdict=judged["verdict"], judgement=judged["judgement"], epoch=plan["epoch"])

    def _judged_attempt(self, pipeline: str, run_id: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return plan and newest verdict of a run's newest attempt that was judged; None if none was."""
        table, judged = schema.event, None
        query = sa.select(table.c.type, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type.in_(("RunPlanned", "Judged"))
        )
        for row in self._rows(query.order_by(table.c.id.desc())):
            if row["type"] == "Judged":
                judged = judged or dict(row["payload"])
            elif judged is not None:
                return dict(row["payload"]), judged
        return None

    def judged_rows_stand(self, pipeline: str, run_id: str, runs: Iterable[str]) -> bool:
        """Return whether any row that a run's newest verdict was about is in the sink.

        What attempts after the one that was judged wrote is no such row.

        Parameters
        ----------
        runs
            Those that were judged together.
        """
        table, events = schema.account, schema.event
        query = sa.select(table.c.epoch, table.c.batch).where(
            table.c.pipeline == pipeline, table.c.run.in_(runs), table.c.closed.is_(None),
            table.c.written + table.c.filtered > 0,
        )  # fmt: skip
        standing = {(row["epoch"], row["batch"]) for row in self._rows(query)}
        happened = sa.select(events.c.run, events.c.type, events.c.payload).where(
            events.c.pipeline == pipeline,
            events.c.run.in_({run_id, *runs}),
            events.c.type.in_(("Judged", "BatchCommitted")),
        )
        judged, since = set[tuple[int, int]](), set[tuple[int, int]]()
        for row in self._rows(happened.order_by(events.c.id)):
            if row["type"] == "BatchCommitted":
                since.add((row["payload"]["epoch"], row["payload"]["batch"]))
            elif row["run"] == run_id:
                judged, since = judged | since, set()
        return bool(standing & judged)

    def unfinished_since_judged(self, pipeline: str, run_id: str) -> bool:
        """Return whether a run began after a run's newest verdict and did not end well, so far as the ledger knows.

        It may have committed what the ledger does not have yet.
        """
        table, events = schema.run, schema.event
        mine = sa.and_(events.c.pipeline == pipeline, events.c.run == run_id, events.c.type == "Judged")
        judged = sa.select(sa.func.max(events.c.id)).where(mine).scalar_subquery()
        begun = events.alias()
        later = sa.select(begun.c.run).where(
            begun.c.pipeline == pipeline, begun.c.type == "RunPlanned", begun.c.id > judged
        )
        query = sa.select(table.c.run).where(
            table.c.pipeline == pipeline, table.c.run.in_(later), table.c.state != "done"
        )
        return bool(self._rows(query.limit(1)))

    def settlement(self, pipeline: str, run_id: str) -> tuple[str, str] | None:
        """Return how a failed verdict of a run was settled, and why; None if it was not, since the attempt that has it.

        Returns
        -------
        tuple
            The event, ``VerdictAccepted`` or ``BatchGivenUp``, and the reason.
        """
        table, settled, judged = schema.event, None, False
        query = sa.select(table.c.type, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type.in_(("RunPlanned", "Judged", *_SETTLED))
        )
        for row in self._rows(query.order_by(table.c.id.desc())):
            if row["type"] in _SETTLED:
                settled = settled or (row["type"], str(row["payload"]["reason"]))
            judged = judged or row["type"] == "Judged"
            if row["type"] == "RunPlanned" and (judged or settled):
                break
        return settled

    def is_decided(self, pipeline: str, run_id: str) -> bool:
        """Return whether a run's verdict was settled, or the pipeline was reset, since the run's newest attempt.

        A decision on the batch that waits counts by whichever run it was called.
        """
        table = schema.event
        mine = sa.and_(table.c.run == run_id, table.c.type.in_(("RunPlanned", *_SETTLED)))
        query = sa.select(table.c.type).where(
            table.c.pipeline == pipeline, sa.or_(mine, table.c.type == "PipelineReset")
        )
        rows = self._rows(query.order_by(table.c.id.desc()).limit(1))
        if rows and rows[0]["type"] != "RunPlanned":
            return True
        run = self.run(pipeline, run_id)
        waits = None if run is None else (self.as_judged(run).judgement or {}).get("waits")
        return waits is not None and self.decision(pipeline, *waits) is not None

    def acceptance(self, pipeline: str, run_id: str) -> str | None:
        """Return why a user accepted what a run wrote; None if nobody did, as :meth:`settlement`."""
        found = self.settlement(pipeline, run_id)
        return found[1] if found is not None and found[0] == "VerdictAccepted" else None

    def settled_batch(self, pipeline: str, epoch: int, batch: int) -> tuple[str, str] | None:
        """Return how a batch that waited for a user's decision was settled, and why, as :meth:`settlement`."""
        found = self._settled(pipeline).get((epoch, batch))
        return None if found is None else (found["type"], str(found["payload"]["reason"]))

    def decision(self, pipeline: str, epoch: int, batch: int) -> tuple[str, str] | None:
        """Return how a batch that waits was settled since it was judged last, and why; None if nobody did since.

        As :meth:`settlement`, whichever of the runs that judged the batch it was called by.
        """
        found, table = self._settled(pipeline).get((epoch, batch)), schema.event
        if found is None:
            return None
        later = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type == "Judged", table.c.id > found["id"]
        )
        again = any((row["payload"]["judgement"] or {}).get("waits") == [epoch, batch] for row in self._rows(later))
        return None if again else (found["type"], str(found["payload"]["reason"]))

    def decided_on(self, pipeline: str, epoch: int, batch: int) -> list[OffsetRange] | None:
        """Return what a batch consisted of when a user decided on it; None if the ledger does not say.

        A power cut may have taken its plan away since, so that Spark planned another batch under this number.
        """
        decided = self._settled(pipeline).get((epoch, batch))
        if decided is None:
            return None
        table = schema.event
        started = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline,
            table.c.run == decided["run"],
            table.c.type == "BatchStarted",
            table.c.id < decided["id"],
        )
        for row in self._rows(started.order_by(table.c.id.desc())):
            if (row["payload"]["epoch"], row["payload"]["batch"]) == (epoch, batch):
                return [OffsetRange(*item) for item in row["payload"]["ranges"]]
        return None

    def accepted_faults(self, pipeline: str, epoch: int, batch: int) -> dict[str, int | None] | None:
        """Return what was wrong with a batch when a user accepted it; None if the ledger does not say.

        See :func:`sluice.run.verdict.faults`.
        """
        found = self._settled(pipeline).get((epoch, batch))
        return found["payload"].get("faults") if found is not None and found["type"] == "VerdictAccepted" else None

    def settled_of(self, pipeline: str, runs: Sequence[str]) -> list[tuple[tuple[int, int], str, str]]:
        """Return the decisions on committed batches of some runs: epoch and number, event and reason of each."""
        return [(key, row["type"], str(row["payload"]["reason"])) for key, row in self._settled_in(pipeline, runs)]

    def too_late(self, pipeline: str, runs: Sequence[str] | None = None) -> list[LateDecision]:
        """Return the newest decisions on batches, of some runs or of all, that were committed the other way before.

        Their drivers had died between the commit and its record.
        """
        decisions, found = self._decisions(pipeline), list[LateDecision]()
        for key, run in self._committed_in(pipeline, runs) if decisions else []:
            last, known = decisions.get(key, [None])[-1], self._carried_out(pipeline, key, decisions)
            if last is None or last is known:
                continue
            was_dropped = known is not None and known["type"] == "BatchGivenUp"
            if was_dropped != (last["type"] == "BatchGivenUp"):
                found.append(LateDecision(key, run, last["type"], str(last["payload"]["reason"])))
        return found

    def carried_out(self, pipeline: str, epoch: int, batch: int) -> tuple[str, str] | None:
        """Return the decision that was carried out when a batch was committed, and why; None if there is none."""
        found = self._carried_out(pipeline, (epoch, batch), self._decisions(pipeline))
        return None if found is None else (found["type"], str(found["payload"]["reason"]))

    def accepted_of(self, pipeline: str, runs: Sequence[str]) -> dict[str, int | None]:
        """Return what was wrong with those batches of some runs that were committed after a user accepted them.

        Numbers are added up. See :func:`sluice.run.verdict.faults`.
        """
        found: dict[str, int | None] = {}
        for _, row in self._settled_in(pipeline, runs):
            known = row["payload"].get("faults") if row["type"] == "VerdictAccepted" else None
            for what, count in (known or {}).items():
                found[what] = None if count is None else (found.get(what) or 0) + count
        return found

    def _settled_in(self, pipeline: str, runs: Sequence[str]) -> list[tuple[tuple[int, int], Mapping[str, Any]]]:
        """Return epoch, number and newest decision of each committed batch of some runs that has one, in order."""
        decisions = self._decisions(pipeline)
        found = []
        for key, _ in self._committed_in(pipeline, runs) if decisions else []:
            known = self._carried_out(pipeline, key, decisions)
            found += [] if known is None else [(key, known)]
        return found

    def _carried_out(
        self, pipeline: str, key: tuple[int, int], decisions: Mapping[tuple[int, int], Sequence[Mapping[str, Any]]]
    ) -> Mapping[str, Any] | None:
        """Return the event of the newest decision on a batch that was made before it was begun for the last time."""
        return next((row for row in reversed(decisions.get(key, ())) if self._known_to(pipeline, key, row)), None)

    def _committed_in(self, pipeline: str, runs: Sequence[str] | None) -> list[tuple[tuple[int, int], str]]:
        """Return epoch and number of each committed batch of some runs, or of all, with its run, in order."""
        table = schema.batch
        query = sa.select(table.c.epoch, table.c.batch, table.c.run).where(
            table.c.pipeline == pipeline, table.c.state == "committed", table.c.epoch > 0
        )
        query = query if runs is None else query.where(table.c.run.in_(runs))
        return sorted(((row["epoch"], row["batch"]), str(row["run"])) for row in self._rows(query))

    def _known_to(self, pipeline: str, key: tuple[int, int], decision: Mapping[str, Any]) -> bool:
        """Return whether a batch was begun after a decision on it: else it had been committed before."""
        table = schema.event
        query = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type == "BatchStarted", table.c.id > decision["id"]
        )
        return any((row["payload"]["epoch"], row["payload"]["batch"]) == key for row in self._rows(query))

    def _settled(self, pipeline: str) -> dict[tuple[int, int], Mapping[str, Any]]:
        """Return the event of the newest decision on each batch that ever waited."""
        return {key: rows[-1] for key, rows in self._decisions(pipeline).items()}

    def _decisions(self, pipeline: str) -> dict[tuple[int, int], list[Mapping[str, Any]]]:
        """Return the events of the decisions on each batch that ever waited, oldest first."""
        table, found = schema.event, dict[tuple[int, int], list[Mapping[str, Any]]]()
        query = sa.select(table.c.id, table.c.run, table.c.type, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.type.in_(_SETTLED)
        )
        for row in self._rows(query.order_by(table.c.id)):
            if (batch := row["payload"].get("batch")) is not None:
                found.setdefault((batch[0], batch[1]), []).append(row)
        return found
