"""Real kills of corrections beside live runs: each takes effect once, in whole, whichever run comes next.

``make test`` kills each correction once, where the sink has it and the ledger does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chaos import commands
from tests.chaos.cases import BATCH
from tests.chaos.commands import AGAIN, AS_NUMBER, assert_conserved, days, killed, listed, lost, redrive, reset, retract
from tests.fixtures.runs import Offset, Sandbox, good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


class Correction:
    """One kind of correction."""

    points: tuple[str, ...] = ("sink-committed", "before-sink-commit", "batch-recorded")
    """Where it is killed; at the first one in each ``make test``."""
    early: tuple[str, ...] = ("run-planned", *BATCH[:4])
    """The points before it takes effect."""

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

    def live(self) -> None:
        """Let a live run come next."""
        self.sandbox.feed(4)
        self.sandbox.run("live")

    def check(self, done: bool) -> None:
        """Look whether it has taken effect."""

    def finish(self) -> None:
        """Look once more behind all of it."""


class IntervalCorrection(Correction):
    points = ("sink-committed", "run-planned", *(point for point in BATCH if point != "sink-committed"), "judged")

    def prepare(self) -> None:
        commands.feed_days(self.sandbox, 1, 7, bad=True)
        self.sandbox.run("before")
        self.rows, self.refused = commands.without_run(self.sandbox), self.sandbox.quarantine()

    def options(self, kill_at: str | None) -> dict[str, Any]:
        return {"interval": days(2, 5), "validate": kill_at == "judged"}

    def check(self, done: bool) -> None:
        assert self.rows <= commands.without_run(self.sandbox)
        assert self.refused <= self.sandbox.quarantine()
        wrote = Counter("before" if run == "before" else "fix" if run.startswith("fix") else run
                        for run in commands.by_run(self.sandbox).elements())  # fmt: skip
        assert (wrote["before"], wrote["fix"]) == ((9, 9) if done else (18, 0))
        (*_, row) = [row for row in self.sandbox.ledger.runs(self.sandbox.name) if row.run == "fix-1"]
        assert not done or self.attempts > 1 or row.state in ("abandoned", "done")


class LostCorrection(Correction):
    points = ("sink-committed", "batch-started", "rows-staged", "before-sink-commit", "quarantine-committed")

    def prepare(self) -> None:
        self.sandbox.configure(transform={"python": "poison:dying"}, recovery="ignore_batch")
        self.sandbox.feed(6, bad_every=4)
        self.sandbox.run("lossy", POISON_IDS="1")

    def options(self, kill_at: str | None) -> dict[str, Any]:
        return {"redriven": "lost"}

    def check(self, done: bool) -> None:
        assert sum(lost(self.sandbox).values()) == (0 if done else 6)


class QuarantinedCorrection(Correction):
    points = ("sink-committed", "before-sink-commit", "quarantine-committed", "batch-recorded")

    def prepare(self) -> None:
        values = [b'{"id": "7", "name": "seven"}', b"broken", good(1), b'{"id": "8"}']
        self.sandbox.produce([(n % 2, b"k", value) for n, value in enumerate(values)])
        self.sandbox.run("first")
        assert self.sandbox.account("first")["quarantined"] == 3

    def carry_out(self, kill_at: str | None = None, *, done: bool = False) -> None:
        self.sandbox.configure(**AS_NUMBER)
        super().carry_out(kill_at)
        self.sandbox.configure()

    def options(self, kill_at: str | None) -> dict[str, Any]:
        return {"redriven": "quarantined"}

    def check(self, done: bool) -> None:
        left = listed(self.sandbox, "table_quarantine")
        assert len(left) == (1 if done else 3)
        assert {"first"} == {row["_run"] for row in left}
        assert ({7, 8} <= {row["id"] for row in listed(self.sandbox)}) is done


class DroppedCorrection(Correction):
    points = ("sink-committed", "before-sink-commit", "quarantine-committed", "batch-recorded")
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
        if kill_at not in self.early:
            self.dropped = self.bad

    def check(self, done: bool) -> None:
        assert sum(self.sandbox.quarantine().values()) == (2 if done else 6)

    def finish(self) -> None:
        events = [e["payload"] for e in self.sandbox.ledger.events(self.sandbox.name) if e["type"] == "RangeRedriven"]
        assert [event["source"] for event in events] == [{"kind": "dropped", "reason": "test data"}]
        split = Counter[str]()
        for run in self.sandbox.ledger.runs(self.sandbox.name):
            split.update(self.sandbox.account(run.run) if run.kind == "redrive" else {})
        assert (split["planned"], split["filtered"], split["written"]) == (4, 4, 0)


class Retraction(Correction):
    points = ("sink-committed", "batch-started", "before-sink-commit", "batch-recorded")

    def prepare(self) -> None:
        for run, count in (("first", 12), ("second", 6)):
            self.sandbox.feed(count, bad_every=4)
            self.sandbox.run(run)
        self.refused = self.sandbox.quarantine()

    def carry_out(self, kill_at: str | None = None, *, done: bool = False) -> None:
        if kill_at:
            killed(self.sandbox, kill_at, "retract", "first", "--reason", "wrong currency")
        else:
            assert ("nothing was retracted" in retract(self.sandbox, "first")) is done

    def check(self, done: bool) -> None:
        assert sum(lost(self.sandbox).values()) == (9 if done else 0)
        assert self.refused <= self.sandbox.quarantine()
        assert self.sandbox.account("first")["written"] == (0 if done else 9)

    def finish(self) -> None:
        redrive(self.sandbox, "--run", "back")
        assert not lost(self.sandbox)
        assert self.sandbox.account("back")["written"] == 9
        assert_conserved(self.sandbox)
        assert not [folder for folder in self.sandbox.orphans() if "-e0-" in folder], "files that readers may use stay"


class ResetCorrection(Correction):
    points = ("epoch-closed", "before-sink-commit", "quarantine-emptied", "epoch-opened")

    def prepare(self) -> None:
        self.sandbox.feed(12, bad_every=4)
        self.sandbox.run("first")

    def carry_out(self, kill_at: str | None = None, *, done: bool = False) -> None:
        if kill_at:
            killed(self.sandbox, kill_at, "reset", "--reason", "another transform", *AGAIN)
            assert kill_at in self.early or not self.sandbox.sink()
            return
        reset(self.sandbox, *AGAIN, run="reset")
        assert not self.sandbox.sink()
        assert not self.sandbox.quarantine()
        reset(self.sandbox, "--from=latest", run="reset")
        assert not lost(self.sandbox), "the same run once more is the same reset"
        reset(self.sandbox, *AGAIN, run="the same once more")
        assert self.sandbox.ledger.account(self.sandbox.name, "the same once more")["reset"]["epoch"] is None
        self.sandbox.run("again")

    def check(self, done: bool) -> None:
        read = [self.sandbox.account(run.run)["planned"] for run in self.sandbox.ledger.runs(self.sandbox.name)
                if run.run in ("live", "again")]  # fmt: skip
        assert read[0] == (16 if done else 4), "the newest run of all"
        assert self.sandbox.account("first")["written"] == 9, "the account of earlier runs stays"
        assert not lost(self.sandbox)


CORRECTIONS: dict[str, type[Correction]] = {
    "interval": IntervalCorrection,
    "redrive-lost": LostCorrection,
    "redrive-quarantined": QuarantinedCorrection,
    "quarantine-drop": DroppedCorrection,
    "retract": Retraction,
    "reset": ResetCorrection,
}
RARE = ("quarantine-drop", "redrive-quarantined")
"""They go through the code of a redrive: killed by ``make chaos`` alone."""


def cases() -> Iterator[Any]:
    """Yield each correction with each of its points."""
    for name, kind in CORRECTIONS.items():
        for number, point in enumerate(kind.points):
            marks = [pytest.mark.long] if number or name in RARE else []
            yield pytest.param(name, point, id=f"{name}-{point}", marks=marks)


@pytest.mark.parametrize(("name", "point"), cases())
def test_correction_takes_effect_once_when_its_driver_dies(sandbox: Sandbox, name: str, point: str) -> None:
    correction = CORRECTIONS[name](sandbox)
    correction.prepare()
    correction.carry_out(point)
    correction.live()
    done = point not in correction.early
    correction.check(done)
    correction.carry_out(done=done)
    correction.check(True)
    assert_conserved(sandbox, correction.dropped)
    correction.finish()
    assert sandbox.never_committed() == set()
