"""Judges a run by the accepted runs before it: whether its figures are near to their median.

Robust deviations: 1.4826 times the median absolute deviation (MAD) is the standard deviation of normal values, and half
of the runs may be odd before it moves far (Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation",
Journal of the American Statistical Association 88, 1993). Three of them is what Leys et al. call very conservative
(Journal of Experimental Social Psychology 49, 2013).

The MAD of figures that hardly vary is zero or nearly so, and any other figure would be infinitely many deviations off.
So a deviation is never less than a floor: what chance makes of as many rows, or a change too small to matter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from sluice.facts.profile import NO_ROWS, Profile
from sluice.ledger import Ledger, RunRow
from sluice.pipeline.history import History
from sluice.run.circuit_breaker import FAILED, only_late
from sluice.text import length

__all__ = ["Broken", "Check", "Finding", "broken_by", "compare", "judge", "stale"]

_NORMAL = 1.4826
_SHARE = 0.05
"""Floor of counts, as a share of their median: a few percent more rows are no event."""
_NEAR = 0.01
"""Floor of values, as a share of their median, or of the distance from least to greatest value."""
_NULLS = 0.001
"""Floor of the share of nulls: of a column that never had any, three deviations are 0.3 % of the rows."""
_TINY = 1e-9
"""Floor of everything: sums of floating-point numbers differ by their order."""


@dataclass(frozen=True)
class Check:
    """A figure of a run beside those of the runs before it.

    Parameters
    ----------
    figure, column
        ``nulls``, ``min``, ``max``, ``mean`` or ``distinct`` of a column, or ``volume``.
    low, high
        Between which it is expected, both inclusive.
    runs
        How many runs have the figure.
    """

    figure: str
    column: str | None
    value: float
    center: float
    low: float
    high: float
    runs: int

    @property
    def ok(self) -> bool:
        """Whether the figure is as expected."""
        return self.low <= self.value <= self.high

    @property
    def name(self) -> str:
        """What was judged."""
        return self.figure if self.column is None else f"{self.figure}({self.column})"

    @property
    def why(self) -> str:
        """The figure and what was expected, in words; without least and greatest values, which are the data's."""
        if self.figure in ("min", "max"):
            return f"it is far from that of the last {self.runs} accepted runs; sluice verdict has the figures"
        here, center, low, high = (
            self._said(v) for v in (self.value, self.center, max(self.low, self._least), self.high)
        )
        return f"{here}; in the last {self.runs} accepted runs {center}, so {low} to {high} is expected"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {**asdict(self), "ok": self.ok}

    def line(self) -> dict[str, Any]:
        """Return a row of a table of checks."""
        low = max(self.low, self._least)
        return {
            "history": self.name,
            "result": "ok" if self.ok else "FAILED",
            "this run": self._said(self.value),
            "expected": f"{self._said(low)} to {self._said(self.high)}",
            "runs": self.runs,
        }

    @property
    def _least(self) -> float:
        return 0.0 if self.figure in ("volume", "nulls", "distinct") else -math.inf

    def _said(self, value: float) -> str:
        if self.figure == "nulls":
            return f"{100 * min(value, 1):.4g} %"
        return f"{value:,.0f}" if self.figure in ("volume", "distinct") else f"{value:.6g}"


@dataclass(frozen=True)
class Broken:
    """An expectation that a run breaks; ``what`` names it."""

    what: str
    why: str


@dataclass(frozen=True)
class Finding:
    """What a run's history says of it.

    Parameters
    ----------
    runs, needed
        How many accepted runs there are, and how many have to be.
    unknown
        What could not be judged, and why.
    late
        Why the newest row is too old; None if it is not.
    """

    runs: int
    needed: int
    checks: tuple[Check, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    late: str | None = None

    @property
    def note(self) -> str | None:
        """What was not judged, in words."""
        told = [f"{name}: {why}" for name, why in self.unknown.items()]
        return "; ".join(told) or None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        checks = [check.as_dict() for check in self.checks]
        return {
            "runs": self.runs, "needed": self.needed, "checks": checks, "unknown": dict(self.unknown),
            "late": self.late,
        }  # fmt: skip


def broken_by(finding: Finding) -> list[Broken]:
    """Return the expectations that a run breaks."""
    late = [Broken("history.freshness", finding.late)] if finding.late else []
    return [*(Broken(f"history.{check.name}", check.why) for check in finding.checks if not check.ok), *late]


def judge(
    ledger: Ledger,
    pipeline: str,
    history: History,
    runs: Sequence[str],
    profile: Profile | None = None,
    *,
    of: Collection[str] = ("volume", "freshness", "columns"),
    held: bool = False,
) -> Finding | None:
    """Judge live runs by the accepted runs before them; None if no run is live.

    Parameters
    ----------
    profile
        That of their rows; by default the one in the ledger.
    of
        What is judged. Volume and freshness are those of whole runs. With ``parts`` instead of ``columns``, the rows
        are a part of a run: that they have fewer values, or less far ones, than whole runs says nothing.
    held
        Whether a failed verdict holds the pipeline.

    Notes
    -----
    Runs that are judged together may have as many rows as that many runs. A run that reads what had waited until a
    verdict was settled may have any number.
    """
    rows = [row for run in runs if (row := ledger.runs.find(pipeline, run)) is not None and row.kind == "live"]
    if not rows:
        return None
    own = [row.run for row in rows]
    profile = ledger.profiles.of(pipeline, own) if profile is None else profile
    past = ledger.profiles.accepted(pipeline, before=min(row.sequence for row in rows), limit=history.runs)
    late: str | None = None
    unknown: dict[str, str] = {}
    if "freshness" in of and history.freshness is not None:
        # judged again, a run is judged by what there was when it ended; tried again, by what there is
        ended = rows[-1].closed_at if rows[-1].state == "done" else None
        upto = max(row.sequence for row in rows) if ended else None
        earlier = [  # many intervals of long ago must not hide the live runs
            run
            for live in (True, False)
            for run in ledger.profiles.runs(pipeline, limit=history.runs, upto=upto, standing=True, live=live)
        ]
        now = datetime.fromisoformat(ended) if ended else datetime.now(UTC)
        times = _newest_of([profile or NO_ROWS, *ledger.profiles.by_run(pipeline, earlier).values()])
        # a record of the far future says nothing of how old the others are, and would hide that none comes any more
        newest = max((time for time in times if time <= now + history.freshness), default=None)
        late = stale(newest, now, history.freshness)
        if newest is None:
            of_future = "; the newest row of each run is of the future" if times else ""
            unknown["history.freshness"] = f"no row with a known time was written yet{of_future}"
    if profile is None:
        return Finding(len(past), history.at_least, (), unknown, late)
    checks, more = compare(history, profile, past, of=of)
    for number, check in enumerate(checks):
        if check.figure == "volume" and check.value > check.high:
            checks[number] = check = replace(check, high=check.high + check.center * (len(rows) - 1))
            if not check.ok and _had_waited(ledger, pipeline, rows, held=held):
                checks.remove(check)
                more |= {"history.volume": f"{profile.rows:,} rows, with what had waited until a verdict was settled"}
    return Finding(len(past), history.at_least, tuple(checks), unknown | more, late)


def _had_waited(ledger: Ledger, pipeline: str, rows: Sequence[RunRow], *, held: bool) -> bool:
    """Return whether records may have waited in the source until a user settled a verdict before these runs."""
    if ledger.verdicts.ever_waited(pipeline, [row.run for row in rows]):
        return True
    before = ledger.verdicts.judged_before(pipeline, min(row.sequence for row in rows))
    if before is None or before.verdict not in FAILED:
        return False
    told = before.judgement or {}
    return bool(told.get("waits")) or (held and not only_late(told))


def compare(
    history: History, profile: Profile, past: Sequence[Profile], *, of: Collection[str] = ("volume", "columns")
) -> tuple[list[Check], dict[str, str]]:
    """Compare a run's profile with those of earlier runs; pure.

    Returns
    -------
    tuple
        What was compared, and what was not, with the reason.
    """
    columns = history.columns if {"columns", "parts"} & set(of) and profile.rows else {}
    volume = history.volume and "volume" in of
    if not (columns or volume):
        return [], {}
    if len(past) < history.at_least:
        said = "1 accepted run" if len(past) == 1 else f"{len(past)} accepted runs"
        return [], {"history": f"there are {said} before this one, and {history.at_least} are needed"}
    checks: list[Check] = []
    unknown: dict[str, str] = {}
    if volume:
        counts = [float(p.rows) for p in past]
        checks.append(_check(history, "volume", None, float(profile.rows), counts, _count_floor(median(counts))))
    for name, figures in columns.items():
        for figure in figures:
            value = _figure(profile, name, figure)
            values = [v for p in past if (v := _figure(p, name, figure)) is not None]
            if value is None:
                unknown[f"history.{figure}({name})"] = "the run's profile has no such number"
            elif len(values) < history.at_least:
                unknown[f"history.{figure}({name})"] = (
                    f"{len(values)} accepted runs have it, and {history.at_least} are needed"
                )
            else:
                floor, scale = _floor(figure, name, profile, past, median(values))
                check = _check(history, figure, name, value, values, floor, scale)
                checks.append(check if "columns" in of else _of_part(check))
    return checks, unknown


def stale(newest: datetime | None, now: datetime, most: timedelta) -> str | None:
    """Return why the newest row is too old; None if it is not, or if it is unknown."""
    if newest is None or now - newest <= most:
        return None
    age = length((now - newest).total_seconds())
    at = newest.isoformat(timespec="seconds")
    return f"the newest row is of {at}, {age} ago, and {length(most.total_seconds())} is expected"


def _check(
    history: History,
    figure: str,
    column: str | None,
    value: float,
    values: Sequence[float],
    floor: float,
    scale: float = 1.0,
) -> Check:
    center = median(values)
    deviation = _NORMAL * median(abs(v - center) for v in values)
    off = history.deviations * max(scale * deviation, floor, _TINY, _TINY * abs(center))
    return Check(figure, column, value, center, center - off, center + off, len(values))


def _of_part(check: Check) -> Check:
    """Return the check of a part of a run: what only the whole run can reach is not expected of it."""
    if check.figure == "min":
        return replace(check, high=max(check.high, check.value))
    return replace(check, low=min(check.low, check.value)) if check.figure in ("max", "distinct") else check


def _floor(figure: str, name: str, profile: Profile, past: Sequence[Profile], center: float) -> tuple[float, float]:
    """Return the least deviation of a figure, and by how much it varies more in a run of fewer rows than usual."""
    rows = profile.columns[name].rows
    usual = median(p.columns[name].rows for p in past if name in p.columns)
    scale = math.sqrt(max(usual / rows, 1.0)) if rows else 1.0
    if figure == "nulls":
        # of as few rows, chance alone makes such shares; Laplace's rule, or a share that was 0 could not vary
        share = (center * rows + 1) / (rows + 2)
        return max(_NULLS, math.sqrt(share * (1 - share) / max(rows, 1))), scale
    if figure == "distinct":
        return _count_floor(center), 1.0
    widths = [
        high - low
        for p in past
        if (c := p.columns.get(name)) and (low := c.end("low")) is not None and (high := c.end("high")) is not None
    ]
    return _NEAR * max(abs(center), median(widths) if widths else 0.0), scale if figure == "mean" else 1.0


def _count_floor(center: float) -> float:
    """Return the least deviation of a count: events that come independently vary by the root of their number."""
    return max(_SHARE * center, math.sqrt(center), 1.0)


def _figure(profile: Profile, name: str, figure: str) -> float | None:
    column = profile.columns.get(name)
    if column is None:
        return None
    match figure:
        case "nulls":
            return column.null_share
        case "min" | "max":
            return column.end("low" if figure == "min" else "high")
        case "mean":
            return column.mean
        case _:
            return None if column.distinct is None else float(column.distinct)


def _newest_of(profiles: Sequence[Profile]) -> list[datetime]:
    """Return the time of each profile's newest row, where it is known."""
    found = [c.high for p in profiles if (c := p.columns.get("_timestamp")) is not None and c.kind == "time"]
    return [datetime.fromisoformat(time) for time in found]
