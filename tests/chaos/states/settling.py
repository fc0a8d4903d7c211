"""Scenarios of a gate in front of the sink: a batch whose verdict fails waits, and somebody settles it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.states.boxes import Box
from tests.chaos.states.oracle import Oracle, ledger_of
from tests.chaos.states.scenarios import RUN, Scenario
from tests.fixtures.runs import Outcome, good

from sluice.errors import ExitCode
from sluice.run.decision import accept, give_up

__all__ = ["SETTLING", "Gated"]

_BAD = "bad"
"""The run whose batch waits."""
_MOST = 9
_HELD_IDS = (14, 15, 16)
_WHY = "a known outlier"


@dataclass(frozen=True)
class Gated(Scenario):
    """With ``quality.when: before_commit``: some rows are in the sink, and a batch fails.

    Attributes
    ----------
    act
        What is recorded: the run that ``fails``; the command ``accept`` or ``retract``; or the run behind it, by which
        the batch is ``published`` or ``given-up``.
    """

    kind: str = "gate"
    validate: bool = True
    act: str = "fails"

    @property
    def ends(self) -> int:
        """The exit code of what is recorded."""
        return int(ExitCode.QUALITY_FAILED) if self.act == "fails" else 0

    def prepare(self, box: Box) -> None:
        """Let a batch fail, and settle it, up to what is recorded."""
        self._gate(box, _MOST)
        self._put(box, good(0), good(1), b"{")
        box.run("first", validate=True)
        self._put(box, *map(good, _HELD_IDS))
        if self.act != "fails":
            box.run(_BAD, validate=True, expect=self.failed)
        if self.act in ("published", "given-up"):
            self._settle(box)
            self._put(box, good(2), b"[", good(3))

    @property
    def failed(self) -> int:
        """The exit code of a run whose batch fails."""
        return int(ExitCode.QUALITY_FAILED)

    def command(self, box: Box) -> tuple[list[str], dict[str, str]]:
        """Return what is recorded."""
        if self.act not in ("accept", "retract"):
            return super().command(box)
        program = str(Path(sys.executable).with_name("sluice"))
        return [program, self.act, str(box.file), _BAD, "--reason", _WHY], box.env()

    def go(self, box: Box, *, kill_at: str | None = None) -> Outcome:
        """Do once more what was recorded."""
        if self.act not in ("accept", "retract"):
            return super().go(box, kill_at=kill_at)
        assert kill_at is None, "this command passes no named point"
        self._settle(box)
        return Outcome(0, "")

    def beside(self, box: Box) -> None:
        """Start a run before somebody settles the batch again: it is held, or goes on if that was done."""
        if self.act in ("accept", "retract"):
            early = box.run("early", validate=True, expect=None)
            assert early.code in (0, ExitCode.HELD), early.stderr

    def later(self, box: Box) -> bool:
        """Bring everything into the sink."""
        if self.act == "fails":
            with ledger_of(box) as ledger:
                accept(ledger, box.name, RUN, reason=_WHY)
        if self.act == "published":
            return False
        box.run("behind", validate=True)
        if self.act in ("retract", "given-up"):
            self._gate(box, 100)
            box.run("back", validate=True, redriven="lost")
        return True

    def oracle(self, box: Box) -> Oracle | None:
        """Return what judges the states before :meth:`later`."""
        if self.act == "published":
            return Oracle(box)
        return Oracle(box, deadly=_HELD_IDS) if self.act == "given-up" else None

    def _settle(self, box: Box) -> None:
        with ledger_of(box) as ledger:
            if self.act in ("accept", "published"):
                accept(ledger, box.name, _BAD, reason=_WHY)
            else:
                give_up(ledger, box.name, _BAD, reason=_WHY)

    def _gate(self, box: Box, most: int) -> None:
        below = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "max_value": most}}
        (box.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [below]}))
        quality: dict[str, Any] = {
            "suite": "suite.json", "when": "before_commit", "on_failed": "hold", "max_quarantined": "100%",
        }  # fmt: skip
        box.configure(kafka={"max_records_per_batch": 100}, recovery=self.strategy, quality=quality)

    def _put(self, box: Box, *values: bytes) -> None:
        box.produce([(n % 2, b"k", value) for n, value in enumerate(values)])


SETTLING = (
    Gated("gate-fails", "replay"),
    Gated("gate-accept", "replay", act="accept"),
    Gated("gate-published", "replay", act="published"),
    Gated("gate-retract", "replay", act="retract"),
    Gated("gate-given-up", "replay", act="given-up"),
)
