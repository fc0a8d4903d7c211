"""What is on record of resumed states, and what it comes to."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.states.moments import KILL, POWER, Moment
from tests.chaos.states.resumer import Resumed
from tests.chaos.states.scenarios import Scenario

from sluice.faults import POINTS

__all__ = ["Progress", "spread", "summary", "table"]


def spread(items: Sequence[Any], count: int | None, every: int = 1) -> list[Any]:
    """Return each ``every``-th item, and of these at most ``count``, evenly spread, the first and last among them."""
    chosen = list(items[::every])
    if count is None or len(chosen) <= count:
        return chosen
    if count == 1:
        return chosen[:1]
    return [chosen[round(i * (len(chosen) - 1) / (count - 1))] for i in range(count)]


@dataclass
class Progress:
    """Results, one JSON line a state, appended as they come; the last line of a state counts."""

    file: Path

    def add(self, scenario: Scenario, moment: Moment, resumed: Resumed) -> dict[str, Any]:
        """Put a result on record; return it."""
        found = resumed.found
        line = {
            "scenario": scenario.name, "strategy": scenario.strategy, "run": scenario.kind, "kind": moment.kind,
            "operation": moment.number, "what": moment.what, "point": moment.point, "key": moment.key,
            "ok": not found.problems, "refused": resumed.refused, "problems": found.problems,
            "lost": found.lost, "doubled": found.doubled, "unaccounted": found.unaccounted, "seconds": resumed.seconds,
        }  # fmt: skip
        with self.file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        return line

    def results(self) -> list[dict[str, Any]]:
        """Return what is on record, each state once."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return list({(r["scenario"], r["kind"], r["key"]): r for r in map(json.loads, lines)}.values())

    def done(self, scenario: str, *, failed_again: bool = False) -> set[tuple[str, str]]:
        """Return kind and key of the states that need not be resumed any more."""
        return {
            (r["kind"], r["key"])
            for r in self.results()
            if r["scenario"] == scenario and (r["ok"] or not failed_again)
        }  # fmt: skip


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what results come to: by kind, strategy and run, and the sums of what dies (power cuts apart).

    Notes
    -----
    Points are the named points at which drivers were killed, or between which states lie.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["kind"], result["strategy"], result["run"]].append(result)
    rows = [
        {"kind": kind, "strategy": strategy, "run": run, **_sums(found)}
        for (kind, strategy, run), found in sorted(groups.items())
    ]  # fmt: skip
    dead = [r for r in results if r["kind"] != POWER]
    killed = [r for r in results if r["kind"] == KILL]
    strategies = sorted({r["strategy"] for r in dead})
    return {
        **_sums(dead),
        "strategies": strategies,
        "killed_at": {s: sorted({r["point"] for r in killed if r["strategy"] == s}) for s in strategies},
        "never_killed_at": sorted(set(POINTS) - {r["point"] for r in killed}),
        "power": _sums([r for r in results if r["kind"] == POWER]),
        "rows": rows,
    }


def _sums(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = {r["scenario"] for r in results}
    total: Counter[str] = Counter()
    for result in results:
        total.update({part: result[part] for part in ("lost", "doubled", "unaccounted")})
        # what an ignoring strategy gives up on purpose is accounted for and no loss of ours
        total["accounted"] += result["lost"] if result["strategy"].startswith("ignore") else 0
    return {
        "scenarios": len(names),
        "points": len({r["point"] for r in results} - {""}),
        "kills": sum(r["kind"] == KILL for r in results),
        "states": sum(r["kind"] != KILL for r in results),
        "refused": sum(r.get("refused", False) for r in results),
        "failed": sum(not r["ok"] for r in results),
        "lost": total["lost"] - total["accounted"],
        "ignored": total["accounted"],
        "doubled": total["doubled"],
        "unaccounted": total["unaccounted"],
        "seconds": round(sum(r["seconds"] for r in results), 1),
    }


def table(summed: dict[str, Any]) -> str:
    """Return the rows of a summary as text."""
    columns = ["kind", "strategy", "run", *(k for k in summed["rows"][0] if k not in ("kind", "strategy", "run"))]
    every = [
        *summed["rows"],
        {"kind": "dead", "strategy": "all", "run": "", **summed},
        {"kind": POWER, "strategy": "all", "run": "", **summed["power"]},
    ]
    cells = [columns, *([str(row.get(c, "")) for c in columns] for row in every)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells)
