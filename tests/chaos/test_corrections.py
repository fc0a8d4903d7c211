"""Real kills of corrections beside live runs: each takes effect once, in whole, whichever run comes next.

Each is killed where the sink has it and the ledger does not; recorded states have each other point of all but ``drop``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.chaos import commands
from tests.chaos.cases import LONG
from tests.chaos.commands import AGAIN, assert_conserved, days, killed, lost, redrive, reset, retract
from tests.fixtures.runs import Offset, Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


class Correction:
    """One kind of correction."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.attempts, self.dropped = sandbox, 0, Counter[Offset]()

    def prepare(self) -> None:
        """Bring about that there is something to correct."""

    def carry_out(self, kill_at: str | None = None, *, done: bool = False) -> None:
        """Correct it, or die; with ``done`` it is corrected already."""
        self.attempts += 1
        self.sandbox.run(f"fix-{self.attempts}", kill_at=kill_at, **self.options(kill_at))

    def options(self, kill_at: str | None) -> dict[str, Any]:
        """Return the options of its runs."""
        return {}

    def check(self, done: bool) -> None:
        """Look whether it has taken effect."""

    def finish(self) -> None:
        """Look once more behind all of it."""


class IntervalCorrection(Correction):
    def prepare(self) -> None:
        commands.feed_days(self.sandbox, 1, 7, bad=True)
        self.sandbox.run("before")
        self.rows, self.refused = commands.without_run(self.sandbox), self.sandbox.quarantine()

    def options(self, kill_at: str | None) -> dict[str, Any]:
        return {"interval": days(2, 5), "validate": kill_at == "judged"}

    def check(self, done: bool) -> None:
        assert self.rows <= commands.without_run(self.sandbox)
        assert self.refused <= self.sandbox.quarantine()
        wrote = commands.by_run(self.sandbox)
        assert (wrote["before"], sum(n for run, n in wrote.items() if run.startswith("fix"))) == (9, 9)
        (*_, row) = [row for row in self.sandbox.ledger.runs.newest(self.sandbox.name) if row.run == "fix-1"]
        assert row.state in ("abandoned", "done")


class LostCorrection(Correction):
    def prepare(self) -> None:
        self.sandbox.configure(transform={"python": "poison:dying"}, recovery="ignore_batch")
        self.sandbox.feed(6, bad_every=4)
        self.sandbox.run("lossy", POISON_IDS="1")
        assert lost(self.sandbox).total() == 6

    def options(self, kill_at: str | None) -> dict[str, Any]:
        return {"redriven": "lost"}

    def check(self, done: bool) -> None:
        assert not lost(self.sandbox)


class DroppedCorrection(Correction):
    command = ("quarantine", "--rule", "json", "--drop", "--reason", "test data")

    def prepare(self) -> None:
        self.bad = Counter(self.sandbox.feed(12, bad_every=3)[::3])
        self.sandbox.produce([(0, b"k", None), (1, b"k", None)])
        self.sandbox.run("first")

    def carry_out(self, kill_at: str | None = None, *, done: bool = False) -> None:
        if kill_at:
            killed(self.sandbox, kill_at, *self.command)
        else:
            commands.said(self.sandbox, *self.command, expect=10 if done else 0)
        if kill_at != "before-sink-commit":
            self.dropped = self.bad

    def check(self, done: bool) -> None:
        assert self.sandbox.quarantine().total() == (2 if done else 6)

    def finish(self) -> None:
        events = [e["payload"] for e in self.sandbox.ledger.events(self.sandbox.name) if e["type"] == "RangeRedriven"]
        assert [event["source"] for event in events] == [{"kind": "dropped", "reason": "test data"}]
        split = Counter[str]()
        for run in self.sandbox.ledger.runs.newest(self.sandbox.name):
            split.update(self.sandbox.account(run.run) if run.kind == "redrive" else {})
        assert (split["planned"], split["filtered"], split["written"]) == (4, 4, 0)


class Retraction(Correction):
    def prepare(self) -> None:
        for run, count in (("first", 12), ("second", 6)):
            commands.drain(self.sandbox, count, run, bad_every=4)
        self.refused = self.sandbox.quarantine()

    def carry_out(self, kill_at: str | None = None, *, done: bool = False) -> None:
        if kill_at:
            killed(self.sandbox, kill_at, "retract", "first", "--reason", "wrong currency")
        else:
            assert ("nothing was retracted" in retract(self.sandbox, "first")) is done

    def check(self, done: bool) -> None:
        assert lost(self.sandbox).total() == 9
        assert self.refused <= self.sandbox.quarantine()
        assert self.sandbox.account("first")["written"] == 0

    def finish(self) -> None:
        redrive(self.sandbox, "--run", "back")
        assert not lost(self.sandbox)
        assert self.sandbox.account("back")["written"] == 9
        assert_conserved(self.sandbox)
        assert not [folder for folder in self.sandbox.orphans() if "-e0-" in folder], "files that readers may use stay"


class ResetCorrection(Correction):
    def prepare(self) -> None:
        commands.drain(self.sandbox, 12, "first", bad_every=4)

    def carry_out(self, kill_at: str | None = None, *, done: bool = False) -> None:
        if kill_at:
            killed(self.sandbox, kill_at, "reset", "--reason", "another transform", *AGAIN)
            assert not self.sandbox.sink()
            return
        reset(self.sandbox, *AGAIN, run="reset")
        assert not self.sandbox.sink()
        assert not self.sandbox.quarantine()
        reset(self.sandbox, "--from=latest", run="reset")
        assert not lost(self.sandbox), "the same run once more is the same reset"
        reset(self.sandbox, *AGAIN, run="the same once more")
        assert self.sandbox.ledger.runs.account(self.sandbox.name, "the same once more")["reset"]["epoch"] is None
        self.sandbox.run("again")

    def check(self, done: bool) -> None:
        read = [self.sandbox.account(run.run)["planned"] for run in self.sandbox.ledger.runs.newest(self.sandbox.name)
                if run.run in ("live", "again")]  # fmt: skip
        assert read[0] == 16, "the newest run of all"
        assert self.sandbox.account("first")["written"] == 9, "the account of earlier runs stays"
        assert not lost(self.sandbox)


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        (IntervalCorrection, "sink-committed"),
        pytest.param(IntervalCorrection, "judged", marks=LONG),
        (LostCorrection, "sink-committed"),
        pytest.param(Retraction, "sink-committed", marks=LONG),
        (ResetCorrection, "epoch-closed"),
        pytest.param(ResetCorrection, "quarantine-emptied", marks=LONG),
        *(
            pytest.param(DroppedCorrection, point, marks=LONG)
            for point in ("sink-committed", "before-sink-commit", "quarantine-committed", "batch-recorded")
        ),
    ],
)
def test_correction_takes_effect_once_when_its_driver_dies(
    sandbox: Sandbox, kind: type[Correction], point: str
) -> None:
    correction = kind(sandbox)
    correction.prepare()
    correction.carry_out(point)
    commands.drain(sandbox, 4, "live")
    done = point != "before-sink-commit"
    correction.check(done)
    correction.carry_out(done=done)
    correction.check(True)
    assert_conserved(sandbox, correction.dropped)
    correction.finish()
    assert sandbox.never_committed() == set()
