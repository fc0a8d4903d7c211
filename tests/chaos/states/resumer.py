"""Puts a recorded state back and lets a run go on from it, as a retry would."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.states.boxes import Box
from tests.chaos.states.moments import DEATH, KILL, POWER, Moment
from tests.chaos.states.oracle import Found, Oracle, ledger_of
from tests.chaos.states.recorder import Recording, record
from tests.chaos.states.scenarios import Scenario

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

    def __init__(self, scenario: Scenario, box: Box, recording: Recording) -> None:
        self.scenario, self.box, self.recording = scenario, box, recording
        self.file = box.file.read_text()
        self._oracle = scenario.oracle(box)
        self._last = scenario.last(box)

    @classmethod
    def make(cls, scenario: Scenario, box: Box, scratch: Path) -> Recorded:
        """Prepare and record; the clean run itself must be right.

        Raises
        ------
        AssertionError
            When it is not.
        """
        scenario.prepare(box)
        box.remember()
        recorded = cls(scenario, box, record(box.home, *scenario.command(box), scratch, scenario.ends))
        found = recorded._look(recorded._oracle)
        assert not found.problems, found.problems
        return recorded

    def resume(self, moment: Moment) -> Resumed:
        """Go on from a state, twice, and look at what is there then; for a kill, kill a driver first."""
        began = time.monotonic()
        moment.tree.write(self.box.home)
        self.box.file.write_text(self.file)
        self.box.rewind(killed=moment.kind == KILL)
        scenario, refused = self.scenario, False
        try:
            if moment.kind == KILL:
                scenario.go(self.box, kill_at=moment.what)
            if moment.number % 2 and moment.kind == DEATH:  # a killed process may take a moment to be gone
                scenario.beside(self.box)
            ended = scenario.go(self.box)
            if moment.kind == POWER and ended.code in _REFUSALS and ended.code != scenario.ends:
                refused = True
                self._remove_empty_commits()
                ended = scenario.go(self.box)
            if ended.code != scenario.ends:
                found = Found([f"exit code {ended.code}:\n{ended.stderr}"])
            else:
                found = self._look(self._oracle)
                found.problems += self._again() if scenario.ends == 0 and scenario.settles else []
                if scenario.later(self.box):
                    before = found.problems
                    found = self._look(self._last)
                    found.problems = [*before, *found.problems]
                found.problems += scenario.also(self.box)
        except Exception as error:  # whatever a run dies of is what is looked for
            found = Found([f"{type(error).__name__}: {error}"])
        return Resumed(found, round(time.monotonic() - began, 3), refused)

    def _remove_empty_commits(self) -> None:
        for commit in self.box.home.rglob("_delta_log/*.json"):
            if commit.stat().st_size == 0:
                commit.unlink()

    def _look(self, oracle: Oracle | None) -> Found:
        return Found() if oracle is None else oracle.look(live=self.scenario.only_live)

    def _again(self) -> list[str]:
        """Run once more: there must be nothing to do. An interval is recreated each time, and is the same."""
        before = self._state()
        ended = self.scenario.go(self.box)
        if ended.code:
            return [f"run again, it ended with {ended.code}:\n{ended.stderr}"]
        if self.scenario.kind == "interval":
            return [f"when run again: {problem}" for problem in self._look(self._oracle).problems]
        after = self._state()
        problems = [] if before[0] == after[0] else [f"run again, it committed: {before[0]} became {after[0]}"]
        done = set(after[1][len(before[1]) :]) - _NOTHING_DONE
        return problems + ([f"run again, it did {sorted(done)}"] if done else [])

    def _state(self) -> tuple[list[Any], list[Any]]:
        with ledger_of(self.box) as ledger:
            events = [event["type"] for event in ledger.events(self.box.name, limit=10_000)]
        return self.box.versions(), events
