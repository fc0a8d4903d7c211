"""Queries about many runs at once, summed up in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from sluice.ledger import schema
from sluice.ledger.offsets import effective
from sluice.ledger.store import Queries
from sluice.ranges import Counts

__all__ = ["Glance", "Histories", "RunLine", "Span"]

_COUNTS = ("written", "filtered", "quarantined", "absent", "lost")
_LINE = (
    "pipeline", "run", "kind", "recovery", "state", "attempts", "opened_at", "closed_at", "seconds", "verdict",
    "interval", "reason", "sequence",
)  # fmt: skip


@dataclass(frozen=True)
class RunLine:
    """One run without its judgement: what a list of runs shows. Times are ISO 8601 in UTC."""

    pipeline: str
    run_id: str
    kind: str
    recovery: str
    state: str
    attempts: int
    opened_at: str
    closed_at: str | None
    seconds: float | None
    verdict: str | None
    interval: str | None
    reason: str | None
    sequence: int
    counts: Counts

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, with the counts beside the rest."""
        return {**{k: v for k, v in asdict(self).items() if k != "counts"}, **self.counts.as_dict()}


@dataclass(frozen=True)
class Glance:
    """A pipeline at a glance.

    Parameters
    ----------
    runs
        Its newest runs, newest first.
    judged
        The newest run that has a verdict.
    lost
        Offsets in open lost ranges.
    """

    pipeline: str
    runs: list[RunLine] = field(default_factory=list)
    judged: RunLine | None = None
    lost: int = 0


@dataclass(frozen=True)
class Span:
    """Consecutive runs of a pipeline, summed up.

    Parameters
    ----------
    runs
        How many they are.
    first, last
        Their ids; ``begin`` and ``end`` are the times when these two began.
    found
        The most offsets that one of its live runs found waiting when it began; None if it has no live run.
    verdicts, states
        How many of the runs have each verdict and each state.
    """

    runs: int
    first: str
    last: str
    begin: str
    end: str
    seconds: float
    counts: Counts
    found: int | None
    verdicts: dict[str, int]
    states: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, with the counts beside the rest."""
        return {**{k: v for k, v in asdict(self).items() if k != "counts"}, **self.counts.as_dict()}


class Histories(Queries):
    """Queries about many runs; their number does not change what an answer weighs."""

    def pipelines(self) -> set[str]:
        """Return the names of all pipelines that have run."""
        return {r["pipeline"] for r in self._rows(sa.select(schema.run.c.pipeline).distinct())}

    def changed(self, since: int) -> tuple[int, set[str]]:
        """Return the id of the newest event, and the pipelines that have one behind ``since``."""
        events = schema.event
        newest = self._rows(sa.select(sa.func.max(events.c.id).label("id")))[0]["id"] or 0
        if newest < since:
            return newest, set()
        return newest, {
            r["pipeline"] for r in self._rows(sa.select(events.c.pipeline).where(events.c.id > since).distinct())
        }

    def forgotten(self, among: Collection[str]) -> set[str]:
        """Return which of these pipelines were forgotten, and have neither run nor been renamed since."""
        events, runs = schema.event, schema.run
        newest = sa.select(sa.func.max(runs.c.sequence)).where(runs.c.pipeline == events.c.pipeline).scalar_subquery()
        renamed = events.alias()
        query = sa.select(events.c.pipeline).where(
            events.c.pipeline.in_(list(among)),
            events.c.type == "PipelineForgotten",
            events.c.id > newest,
            ~sa.exists().where(
                renamed.c.pipeline == events.c.pipeline,
                renamed.c.type == "PipelineAdopted",
                renamed.c.id > events.c.id,
            ),
        )
        return {r["pipeline"] for r in self._rows(query)}

    def glances(self, pipelines: Collection[str], *, runs: int = 30) -> dict[str, Glance]:
        """Return some pipelines at a glance, by name."""
        table, lost = schema.run, schema.lost
        lines: dict[str, list[RunLine]] = {name: [] for name in pipelines}
        judged: dict[str, RunLine] = {}
        for name in pipelines:
            own = table.c.pipeline == name
            lines[name] = self._lines(sa.select(table).where(own).order_by(table.c.sequence.desc()).limit(runs))
            found = next((line for line in lines[name] if line.verdict), None)
            if found is None and len(lines[name]) == runs:  # long ago, or never
                told = sa.select(table).where(own, table.c.verdict.is_not(None))
                found = next(iter(self._lines(told.order_by(table.c.sequence.desc()).limit(1))), None)
            if found is not None:
                judged[name] = found
        open_ranges = (
            sa.select(lost.c.pipeline, sa.func.sum(lost.c.end - lost.c.start).label("offsets"))
            .where(lost.c.pipeline.in_(list(pipelines)), lost.c.state == "open")
            .group_by(lost.c.pipeline)
        )
        offsets = {r["pipeline"]: int(r["offsets"]) for r in self._rows(open_ranges)}
        return {name: Glance(name, lines[name], judged.get(name), offsets.get(name, 0)) for name in pipelines}

    def page(self, pipeline: str, *, before: int | None = None, limit: int = 50) -> list[RunLine]:
        """Return the newest runs, newest first; the page after that with ``before``, the last one's ``sequence``."""
        table = schema.run
        query = sa.select(table).where(table.c.pipeline == pipeline).order_by(table.c.sequence.desc()).limit(limit)
        return self._lines(query if before is None else query.where(table.c.sequence < before))

    def count(self, pipeline: str) -> int:
        """Return the number of a pipeline's runs."""
        table = schema.run
        rows = self._rows(sa.select(sa.func.count().label("n")).select_from(table).where(table.c.pipeline == pipeline))
        return int(rows[0]["n"])

    def spans(self, pipeline: str, *, newest: int, at_most: int = 200) -> list[Span]:
        """Return the newest runs in at most so many spans of as many runs each, oldest first.

        What lies further back fills the oldest span only as far as ``newest`` goes.
        """
        width = max(1, -(-min(newest, self.count(pipeline)) // at_most))
        table = schema.run
        newest_first = table.c.sequence.desc()
        window = (
            sa.select(
                *(table.c[c] for c in ("pipeline", "run", "kind", "state", "verdict", "opened_at", "seconds")),
                table.c.sequence,
                ((sa.func.row_number().over(order_by=newest_first) - 1) // width).label("span"),
            )
            .where(table.c.pipeline == pipeline)
            .order_by(newest_first)
            .limit(newest)
            .cte("chosen")
        )
        spans: dict[int, dict[str, Any]] = {}
        kinds = (window.c.span, window.c.verdict, window.c.state)
        tallies = sa.select(
            *kinds,
            sa.func.count().label("runs"),
            sa.func.min(window.c.sequence).label("from"),
            sa.func.max(window.c.sequence).label("upto"),
            sa.func.sum(window.c.seconds).label("seconds"),
        ).group_by(*kinds)
        for r in self._rows(tallies):
            s = spans.setdefault(int(r["span"]), {"runs": 0, "seconds": 0.0, "verdicts": {}, "states": {}})
            s["runs"] += int(r["runs"])
            s["seconds"] += float(r["seconds"] or 0)
            s["from"], s["upto"] = min(r["from"], s.get("from", r["from"])), max(r["upto"], s.get("upto", r["upto"]))
            for what, value in (("verdicts", r["verdict"]), ("states", r["state"])):
                if value is not None:
                    s[what][value] = s[what].get(value, 0) + int(r["runs"])
        each = _split_of(window, window.c.span, window.c.kind, window.c.run).subquery()
        sums = {c: sa.func.sum(each.c[c]).label(c) for c in _COUNTS}
        most = sa.func.max(sa.case((each.c.kind == "live", sum(each.c[c] for c in _COUNTS)))).label("most")
        split = {
            int(r["span"]): r for r in self._rows(sa.select(each.c.span, *sums.values(), most).group_by(each.c.span))
        }
        found = {number: int(r["most"]) for number, r in split.items() if r["most"] is not None}
        for number, waiting in self._planned(window).items():
            found[number] = max(waiting, found.get(number, 0))
        edges = {s[key] for s in spans.values() for key in ("from", "upto")}
        ends = {
            r["sequence"]: r
            for r in self._rows(
                sa.select(table.c.run, table.c.sequence, table.c.opened_at).where(
                    table.c.pipeline == pipeline, table.c.sequence.in_(edges)
                )
            )
        }
        return [
            Span(
                runs=s["runs"],
                first=ends[s["from"]]["run"],
                last=ends[s["upto"]]["run"],
                begin=ends[s["from"]]["opened_at"],
                end=ends[s["upto"]]["opened_at"],
                seconds=s["seconds"],
                counts=_counts(split[number]) if number in split else Counts(),
                found=found.get(number),
                verdicts=s["verdicts"],
                states=s["states"],
            )
            for number, s in sorted(spans.items(), reverse=True)
        ]

    def _planned(self, window: sa.CTE) -> dict[int, int]:
        """Return, by span, the most that a live run planned which is not done: its account says less."""
        events = schema.event
        query = (
            sa.select(window.c.span, events.c.payload)
            .join_from(window, events, sa.and_(events.c.pipeline == window.c.pipeline, events.c.run == window.c.run))
            .where(window.c.kind == "live", window.c.state != "done", events.c.type == "RunPlanned")
        )
        found: dict[int, int] = {}
        for r in self._rows(query):
            waiting = sum(end - start for _, _, start, end in r["payload"]["ranges"])
            found[r["span"]] = max(waiting, found.get(r["span"], 0))
        return found

    def _lines(self, query: sa.Select[Any]) -> list[RunLine]:
        """Return runs with their counts."""
        window = query.with_only_columns(*(schema.run.c[c] for c in _LINE)).cte("chosen")
        rows = self._rows(sa.select(window).order_by(window.c.sequence.desc()))
        counts = {
            (r["pipeline"], r["run"]): _counts(r)
            for r in self._rows(_split_of(window, window.c.pipeline, window.c.run))
        }
        return [
            RunLine(
                run_id=r["run"],
                counts=counts.get((r["pipeline"], r["run"]), Counts()),
                **{c: r[c] for c in _LINE if c != "run"},
            )
            for r in rows
        ]


def _split_of(window: sa.CTE, *by: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return the sums of the accounts of a window's runs."""
    parts = schema.account
    return (
        sa.select(*by, *(sa.func.sum(parts.c[c]).label(c) for c in _COUNTS))
        .join_from(window, parts, sa.and_(parts.c.pipeline == window.c.pipeline, parts.c.run == window.c.run))
        .where(effective(parts))
        .group_by(*by)
    )


def _counts(row: Mapping[str, Any] | sa.RowMapping) -> Counts:
    values: Sequence[int] = [int(row[c] or 0) for c in _COUNTS]
    return Counts(*values)
