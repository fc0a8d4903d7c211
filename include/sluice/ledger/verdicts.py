"""Queries about verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.rows import RunRow
from sluice.ledger.runs import Runs
from sluice.ledger.store import Queries
from sluice.ranges import OffsetRange

__all__ = ["Decision", "LateDecision", "Verdicts"]

_AT_ONCE = 500
_SETTLED = ("VerdictAccepted", "BatchGivenUp")


@dataclass(frozen=True)
class Decision:
    """A decision of a user on a failed verdict, or on the batch that waits because of it."""

    event: str
    """``VerdictAccepted`` or ``BatchGivenUp``."""
    reason: str
    batch: tuple[int, int] | None = None
    """Epoch and number; None if it is about a whole run."""
    faults: dict[str, int | None] | None = None
    """The faults of the batch that was accepted (:func:`sluice.run.verdict.faults`); None if they are not known."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Decision:
        """Read an event."""
        told = row["payload"]
        batch = None if told.get("batch") is None else (told["batch"][0], told["batch"][1])
        return cls(row["type"], str(told["reason"]), batch, told.get("faults"))


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


class Verdicts(Queries):
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

    def settlement(self, pipeline: str, run_id: str) -> Decision | None:
        """Return how a failed verdict of a run was settled; None if it was not, since the attempt that has it."""
        table, settled, judged = schema.event, None, False
        query = sa.select(table.c.type, table.c.payload).where(
            table.c.pipeline == pipeline, table.c.run == run_id, table.c.type.in_(("RunPlanned", "Judged", *_SETTLED))
        )
        for row in self._rows(query.order_by(table.c.id.desc())):
            if row["type"] in _SETTLED:
                settled = settled or Decision.of(row)
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
        run = Runs(self._engine).find(pipeline, run_id)
        waits = None if run is None else (self.as_judged(run).judgement or {}).get("waits")
        return waits is not None and self.decision(pipeline, *waits, standing=True) is not None

    def acceptance(self, pipeline: str, run_id: str) -> str | None:
        """Return why a user accepted what a run wrote; None if no user did, as :meth:`settlement`."""
        found = self.settlement(pipeline, run_id)
        return found.reason if found is not None and found.event == "VerdictAccepted" else None

    def decision(
        self,
        pipeline: str,
        epoch: int,
        batch: int,
        *,
        standing: bool = False,
        of: Sequence[OffsetRange] | None = None,
    ) -> Decision | None:
        """Return the newest decision on a batch that waits, or waited; None if there is none.

        Parameters
        ----------
        standing
            Only if the batch was not judged again since, by whichever run.
        of
            Only if the batch consisted of these records then, or the ledger does not say of which: a power cut may
            have taken its plan away, so that Spark planned another batch under this number.
        """
        found, table = self._decisions(pipeline).get((epoch, batch), [None])[-1], schema.event
        if found is None:
            return None
        if standing:
            later = sa.select(table.c.payload).where(
                table.c.pipeline == pipeline, table.c.type == "Judged", table.c.id > found["id"]
            )
            if any((row["payload"]["judgement"] or {}).get("waits") == [epoch, batch] for row in self._rows(later)):
                return None
        if of is not None:
            was = self._begun(pipeline, (epoch, batch), found)
            if was is not None and _whole(was) != _whole(of):
                return None
        return Decision.of(found)

    def _begun(self, pipeline: str, key: tuple[int, int], event: Mapping[str, Any]) -> list[OffsetRange] | None:
        """Return with which ranges the run of an event had begun a batch before; None if the ledger does not say."""
        table = schema.event
        started = sa.select(table.c.payload).where(
            table.c.pipeline == pipeline,
            table.c.run == event["run"],
            table.c.type == "BatchStarted",
            table.c.id < event["id"],
        )
        for row in self._rows(started.order_by(table.c.id.desc())):
            if (row["payload"]["epoch"], row["payload"]["batch"]) == key:
                return [OffsetRange(*item) for item in row["payload"]["ranges"]]
        return None

    def settled_of(self, pipeline: str, runs: Sequence[str]) -> list[Decision]:
        """Return the newest decision on each committed batch of some runs that has one, in order."""
        decisions = self._decisions(pipeline)
        batches = self._committed_in(pipeline, runs) if decisions else []
        found = (self._carried_out(pipeline, key, decisions) for key, _ in batches)
        return [Decision.of(row) for row in found if row is not None]

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

    def carried_out(self, pipeline: str, epoch: int, batch: int) -> Decision | None:
        """Return the decision that was carried out when a batch was committed; None if there is none."""
        found = self._carried_out(pipeline, (epoch, batch), self._decisions(pipeline))
        return None if found is None else Decision.of(found)

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


def _whole(ranges: Sequence[OffsetRange]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return what ranges cover of each partition: its first offset, and the one behind its last."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for item in filter(len, ranges):
        start, end = found.get((item.topic, item.partition), (item.start, item.end))
        found[item.topic, item.partition] = min(start, item.start), max(end, item.end)
    return found
