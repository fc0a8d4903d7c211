"""Scenarios of what readers of a table are promised: columns that come, rows that are split off, go or wait."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.states.boxes import Box
from tests.chaos.states.oracle import Oracle, ledger_of, number_of
from tests.chaos.states.scenarios import RUN, Scenario
from tests.fixtures.runs import Outcome, good

from sluice.errors import ExitCode
from sluice.run.actions import Reset, Retract
from sluice.run.decision import accept, give_up

__all__ = ["CONTRACTS", "SETTLING", "Evolving", "Gated", "Resetting", "Retracting", "Splitting"]

_WHY = "wrong currency"
_ALL = {"max_quarantined": "100%"}


@dataclass(frozen=True)
class Evolving(Scenario):
    """With ``sink.evolve: add``, records come with two fields more than those before."""

    kind: str = "evolve"

    def prepare(self, box: Box) -> None:
        keys: dict[str, Any] = {"kafka": {"max_records_per_batch": self.size}, "recovery": self.strategy}
        box.configure(**keys)
        box.feed(4, bad_every=4)
        box.run("before")
        wider = {"json": {"schema": "id BIGINT, name STRING, tax BIGINT, at STRUCT<city: STRING>"}}
        box.configure(decode=wider, sink={"delta": {"path": "table", "evolve": "add"}}, **keys)
        for n in range(10, 10 + self.records):
            value = {"id": n, "name": f"n{n}", "tax": n * 2, "at": {"city": "Köln"}}
            box.produce([(n % 2, b"k", b"{" if n % 4 == 3 else json.dumps(value).encode())])

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states: rows of before have no values in the new columns."""
        return Oracle(box, more=lambda r: {name: json.loads(r.value).get(name) for name in ("tax", "at")})

    def also(self, box: Box) -> list[str]:
        """Return what else is wrong: the ledger must tell once of the columns."""
        with ledger_of(box) as ledger:
            events = ledger.events(box.name, limit=10_000)
        added = [[c["column"] for c in e["payload"]["added"]] for e in events if e["type"] == "SchemaEvolved"]
        return [] if added == [["tax", "at"]] else [f"the ledger has the added columns {added}"]


@dataclass(frozen=True)
class Splitting(Scenario):
    """With ``quality.split: critical``, some rows break critical expectations, and some records do not decode."""

    kind: str = "split"
    validate: bool = True

    def prepare(self, box: Box) -> None:
        expectations = [
            {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "min_value": 0}},
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}},
        ]
        suite = {"name": "s", "expectations": [e | {"severity": "critical"} for e in expectations]}
        (box.home / "suite.json").write_text(json.dumps(suite))
        quality = {"suite": "suite.json", "split": "critical", **_ALL}
        box.configure(kafka={"max_records_per_batch": self.size}, recovery=self.strategy, quality=quality)
        values = [{"id": n, "name": f"n{n}"} for n in range(self.records)]
        values += [{"id": -5, "name": "x"}, {"id": 50, "name": None}, {"id": -6, "name": None}]
        box.produce([(n % 2, b"k%d" % n, v) for n, v in enumerate([*(json.dumps(v).encode() for v in values), b"{"])])

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states: what breaks an expectation is verbatim in the quarantine."""
        return Oracle(box, sound=_kept)

    def also(self, box: Box) -> list[str]:
        """Return what else is wrong: each refused record must name the rules that it broke."""
        table = box.rows("table_quarantine")
        rows = [] if table is None else table.to_pylist()
        broke = sorted(sorted(error["rule"] for error in row["_errors"]) for row in rows)
        between, null = "expect_column_values_to_be_between", "expect_column_values_to_not_be_null"
        firsts = sorted(rules[0] for rules in broke)
        return [] if firsts == [between, between, null, "json"] else [f"the quarantine has the rules {broke}"]


def _kept(record: Any) -> bool:
    number = number_of(record)
    return number is not None and number >= 0 and json.loads(record.value)["name"] is not None


@dataclass(frozen=True)
class Retracting(Scenario):
    """``sluice retract`` takes back what the first of two runs wrote."""

    kind: str = "retract"

    @property
    def options(self) -> dict[str, Any]:
        return {"job": lambda run: Retract(run, _WHY, "first")}

    def prepare(self, box: Box) -> None:
        box.configure(kafka={"max_records_per_batch": self.size}, recovery=self.strategy)
        for run in ("first", "second"):
            box.feed(self.records, bad_every=4)
            box.run(run)

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states: what the first run wrote is open as lost, and nothing else is."""
        return Oracle(box, deadly=[n for n in range(self.records) if n % 4])

    def beside(self, box: Box) -> None:
        box.run("live")

    def later(self, box: Box) -> bool:
        box.run("back", redriven="lost")
        return True


@dataclass(frozen=True)
class Resetting(Scenario):
    """``sluice reset`` begins a pipeline again: ``earliest``, after all its rows left; or ``latest``."""

    kind: str = "reset"
    begin: str = "earliest"

    @property
    def options(self) -> dict[str, Any]:
        truncate = self.begin == "earliest"
        return {"job": lambda run: Reset(run, _WHY, self.begin, truncate, agreed=True)}

    def prepare(self, box: Box) -> None:
        """Write something; of what waits then, a reset to the latest offsets skips all."""
        box.configure(kafka={"max_records_per_batch": self.size}, recovery=self.strategy)
        box.feed(self.records, bad_every=4)
        box.run("first")
        box.feed(4)

    def oracle(self, box: Box) -> Oracle | None:
        """Return what judges the states before :meth:`later`: nothing, for the rows have left."""
        return None

    def beside(self, box: Box) -> None:
        """Let a live run finish what a dead reset began; if it began nothing, it reads on."""
        box.run("live")

    def later(self, box: Box) -> bool:
        """Write what the new epoch reads, and what it skipped."""
        box.run("again")
        if self.begin == "latest":
            box.run("back", redriven="lost")
        return True


CONTRACTS = (
    Evolving("evolve", "replay"),
    Splitting("split", "replay", records=4),
    Retracting("retract", "replay", records=8),
    Retracting("retract-wal", "wal", records=8),
    Resetting("reset", "replay", records=8),
    Resetting("reset-wal", "wal", records=8),
    Resetting("reset-latest", "replay", records=8, begin="latest"),
)

_BAD = "bad"
"""The run whose batch waits."""
_MOST = 9
_HELD_IDS = (14, 15, 16)
_OUTLIER = "a known outlier"


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
        return int(ExitCode.QUALITY_FAILED)

    def command(self, box: Box) -> tuple[list[str], dict[str, str]]:
        if self.act not in ("accept", "retract"):
            return super().command(box)
        program = str(Path(sys.executable).with_name("sluice"))
        return [program, self.act, str(box.file), _BAD, "--reason", _OUTLIER], box.env()

    def go(self, box: Box, *, kill_at: str | None = None) -> Outcome:
        if self.act not in ("accept", "retract"):
            return super().go(box, kill_at=kill_at)
        assert kill_at is None, "this command passes no named point"
        self._settle(box)
        return Outcome(0, "")

    def beside(self, box: Box) -> None:
        """Start a run before the batch is settled again: it is held, or goes on if that was done."""
        if self.act in ("accept", "retract"):
            early = box.run("early", validate=True, expect=None)
            assert early.code in (0, ExitCode.HELD), early.stderr

    def later(self, box: Box) -> bool:
        if self.act == "fails":
            with ledger_of(box) as ledger:
                accept(ledger, box.name, RUN, reason=_OUTLIER)
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
                accept(ledger, box.name, _BAD, reason=_OUTLIER)
            else:
                give_up(ledger, box.name, _BAD, reason=_OUTLIER)

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
