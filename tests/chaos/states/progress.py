"""What is on record of resumed states, and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import results
from tests.chaos.states.moments import DEATH, KILL, POWER, Moment
from tests.chaos.states.resumer import Resumed
from tests.chaos.states.scenarios import Scenario

__all__ = ["PARTS", "Progress", "record", "spread"]

PARTS = {"deaths": DEATH, "cuts": POWER, "kills": KILL}
"""What the table counts."""


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
    """Results in a folder: a file for each scenario, one JSON line a state; the last line of a state counts."""

    folder: Path

    def add(self, scenario: Scenario, moment: Moment, resumed: Resumed) -> dict[str, Any]:
        found = resumed.found
        line = {
            "scenario": scenario.name, "kind": moment.kind, "operation": moment.number, "what": moment.what,
            "point": moment.point, "key": moment.key, "ok": not found.problems, "refused": resumed.refused,
            "problems": found.problems, "lost": found.lost, "doubled": found.doubled, "unaccounted": found.unaccounted,
            "seconds": resumed.seconds, "date": results.now(), "commit": results.revision(),
        }  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file(scenario.name).open("a") as out:
            out.write(json.dumps(line) + "\n")
        return line

    def results(self, scenario: str) -> list[dict[str, Any]]:
        file = self.file(scenario)
        lines = map(json.loads, file.read_text().splitlines() if file.exists() else [])
        return list({(r["kind"], r["key"]): r for r in lines}.values())

    def file(self, scenario: str) -> Path:
        return self.folder / f"{scenario}.jsonl"


def record(
    scenario: Scenario, steps: str, kinds: Iterable[str], states: Sequence[Moment], found: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the table's record of a scenario.

    Parameters
    ----------
    kinds, states
        What was recorded: kinds of durable step; recorded deaths, power cuts and kills.
    found
        What is on record of some of them.

    Notes
    -----
    What an ignoring strategy gives up on purpose is accounted for, and no loss of ours.
    """
    sums = {part: sum(r[part] for r in found) for part in ("lost", "doubled", "unaccounted", "seconds", "refused")}
    ignoring = scenario.strategy.startswith("ignore")
    counts = {part: sum(r["kind"] == kind for r in found) for part, kind in PARTS.items()}
    of = {f"{part}_of": sum(m.kind == kind for m in states) for part, kind in PARTS.items()}
    return {
        "scenario": scenario.name, "strategy": scenario.strategy, "steps": steps, **counts, **of, **sums,
        "lost": 0 if ignoring else sums["lost"], "ignored": sums["lost"] if ignoring else 0,
        "failed": sum(not r["ok"] for r in found), "seconds": round(sums["seconds"], 1),
        "points": sorted({r["point"] for r in found if r["kind"] == KILL}), "kinds": sorted(set(kinds)),
        "date": max(r["date"] for r in found), "commit": " ".join(dict.fromkeys(r["commit"] for r in found)),
    }  # fmt: skip
