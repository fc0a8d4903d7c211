"""Puts a recorded state back and lets a run go on from it, as a retry would."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.states.moments import KILL, POWER, Moment
from tests.chaos.states.oracle import Found, Oracle
from tests.chaos.states.recorder import Recording, record
from tests.chaos.states.scenarios import RUN, Scenario
from tests.fixtures.runs import KeptSandbox

from sluice.ledger import Ledger

__all__ = ["Recorded", "Resumed"]

_REFUSALS = {30, 41}
"""A table or a checkpoint that is damaged."""

_NOTHING_DONE = {"RunPlanned", "RunClosed", "Judged"}


@dataclass
class Resumed:
    """How a state went on.

    Attributes
    ----------
    seconds
        Both runs and the look at what they left.
    refused
        Whether the run would not go on before the table's empty commits were removed, as it says itself: what a power
        cut may leave, and no death of a process.
    """

    found: Found
    seconds: float
    refused: bool = False


class Recorded:
    """A scenario in a sandbox: recorded once, resumed as often as it has states."""

    def __init__(self, scenario: Scenario, box: KeptSandbox, recording: Recording) -> None:
        self.scenario, self.box, self.recording = scenario, box, recording
        self._oracle: Oracle = scenario.oracle(box)

    @classmethod
    def make(cls, scenario: Scenario, box: KeptSandbox, scratch: Path) -> Recorded:
        """Prepare and record; the clean run itself must be right.

        Raises
        ------
        AssertionError
            When it is not.
        """
        scenario.prepare(box)
        env = box.env(**scenario.poison)
        options = {key: value for key, value in scenario.options.items() if key not in scenario.poison}
        recorded = cls(scenario, box, record(box.home, box.submission(RUN, env, **options), env, scratch))
        found = recorded._look()
        assert not found.problems, found.problems
        return recorded

    def resume(self, moment: Moment) -> Resumed:
        """Go on from a state, twice, and look at what is there then; for a kill, kill a driver first."""
        began = time.monotonic()
        moment.tree.write(self.box.home)
        refused = False
        try:
            if moment.kind == KILL:
                self.box.run(RUN, kill_at=moment.what, **self.scenario.options)
            ended = self.box.run(RUN, expect=None, **self.scenario.options)
            if moment.kind == POWER and ended.code in _REFUSALS:
                refused = True
                self._remove_empty_commits()
                ended = self.box.run(RUN, expect=None, **self.scenario.options)
            if ended.code:
                found = Found([f"exit code {ended.code}:\n{ended.stderr}"])
            else:
                found = self._look()
                found.problems += self._again()
        except Exception as error:  # whatever a run dies of is what is looked for
            found = Found([f"{type(error).__name__}: {error}"])
        return Resumed(found, round(time.monotonic() - began, 3), refused)

    def _remove_empty_commits(self) -> None:
        for commit in self.box.home.rglob("_delta_log/*.json"):
            if commit.stat().st_size == 0:
                commit.unlink()

    def _look(self) -> Found:
        return self._oracle.look(live=self.scenario.kind == "live")

    def _again(self) -> list[str]:
        """Run once more: there must be nothing to do. An interval is recreated each time, and is the same."""
        before = self._state()
        self.box.run(RUN, **self.scenario.options)
        if self.scenario.kind == "interval":
            return [f"when run again: {problem}" for problem in self._look().problems]
        after = self._state()
        problems = [] if before[0] == after[0] else [f"run again, it committed: {before[0]} became {after[0]}"]
        done = set(after[1][len(before[1]) :]) - _NOTHING_DONE
        return problems + ([f"run again, it did {sorted(done)}"] if done else [])

    def _state(self) -> tuple[list[int], list[Any]]:
        ledger = Ledger.open(self.box.ledger_url)
        try:
            events = [event["type"] for event in ledger.events(self.box.name, limit=10_000)]
        finally:
            ledger._engine.dispose()
        tables = [self.box.table(path) for path in ("table", "table_quarantine", f"logs/{self.box.name}")]
        return [-1 if table is None else table.version() for table in tables], events
