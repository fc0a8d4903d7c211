"""What must be where when a run has ended, from an independent reading of the topic."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tests.chaos.states.boxes import Box
from tests.fixtures.inside import MODULES, on_path
from tests.fixtures.runs import KeptSandbox

from sluice.audit import audit, deep_audit
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load

__all__ = ["Found", "Oracle", "ledger_of", "number_of"]

_PARTS = ("written", "quarantined", "lost")


@dataclass
class Found:
    """What was found wrong, in words and in numbers of records."""

    problems: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    unaccounted: int = 0


@contextmanager
def ledger_of(box: KeptSandbox) -> Iterator[Ledger]:
    """Open a sandbox's ledger, and let go of it: the next state's database is another file of the same name."""
    ledger = Ledger.open(box.ledger_url)
    try:
        yield ledger
    finally:
        ledger._engine.dispose()


def number_of(record: Any) -> int | None:
    """Return the id in a record's value; None for a record that no schema of these tests can decode."""
    try:
        return int(json.loads(record.value)["id"])
    except (ValueError, TypeError, KeyError):
        return None


class Oracle:
    """Reads the topic once, with a client that shares no code with a run; then looks at what runs left.

    Parameters
    ----------
    deadly
        Ids of the records of which the transform dies.
    exactly
        Whether these and no others may be lost; otherwise they and what was in a batch with one.
    more
        What else a row holds, by its record.
    sound
        Whether a record belongs into the sink; by default whether it decodes.
    """

    def __init__(
        self,
        sandbox: Box,
        *,
        deadly: Sequence[int] = (),
        exactly: bool = True,
        more: Callable[[Any], dict[str, Any]] = lambda _: {},
        sound: Callable[[Any], bool] = lambda record: number_of(record) is not None,
    ) -> None:
        self._sandbox = sandbox
        self._read()
        self._deadly = {at for at, r in self._records.items() if number_of(r) in set(deadly)}
        self._exactly, self._more, self._sound = exactly, more, sound
        self._written = 0

    def _read(self) -> None:
        self._records = {(r.topic, r.partition, r.offset): r for r in self._sandbox.records()}

    def look(self, *, live: bool) -> Found:
        """Compare sink, quarantine, ledger and files with the topic.

        Parameters
        ----------
        live
            Whether only live runs ran: then the ledger's sums are those of the tables.
        """
        box, found = self._sandbox, Found()
        if box.moves:
            self._read()
        with ledger_of(box) as ledger:
            lost = self._lost(ledger)
            rows, refused = _rows(box), _refused(box)
            said = {part: sum(getattr(a.counts, part) for a in ledger.offsets.accounts(box.name)) for part in _PARTS}
            self._written = said["written"]
            if not box.kept_rows:  # they were printed, and the account is all that there is
                rows = Counter(self._due(lost))
            if box.at_least_once:  # then rows that came again are as promised
                rows = Counter(set(rows))
            self._compare(rows, refused, lost, found)
            self._books(ledger, found)
            if live:
                for part, held in (("written", rows), ("quarantined", refused), ("lost", lost)):
                    if said[part] != sum(held.values()):
                        found.problems.append(f"the ledger says {said[part]} {part}, there are {sum(held.values())}")
        found.problems += [f"orphan {path}" for path in box.astray()]
        return found

    def compare(self, part: str, held: Counter[Any], want: Counter[Any], found: Found) -> None:
        """Say how two multisets differ."""
        if held != want:
            found.problems.append(f"{part}: too much {held - want}, missing {want - held}")

    def _compare(self, rows: Counter[Any], refused: Counter[Any], lost: Counter[Any], found: Found) -> None:
        at: Counter[Any] = Counter()
        for held in (rows, refused):
            for item, count in held.items():
                at[item[0]] += count
        at += lost
        found.lost = sum(lost.values())
        found.doubled = sum(n - 1 for n in at.values())
        found.unaccounted = len(self._records.keys() - at.keys())
        strangers = at.keys() - self._records.keys()
        if found.doubled or found.unaccounted or strangers:
            doubled, nowhere = [o for o, n in at.items() if n > 1], sorted(self._records.keys() - at.keys())
            found.problems.append(f"doubled {doubled}, unaccounted {nowhere}, of nothing {sorted(strangers)}")
        want = self._due(lost)
        self.compare("sink", rows, want, found)
        token, bad = self._sandbox.token, [(o, r) for o, r in self._records.items() if not self._sound(r)]
        want = Counter((o, token(r.key, r.value)) for o, r in bad if o not in lost)
        self.compare("quarantine", refused, want, found)
        if not self._deadly <= lost.keys() or (self._exactly and self._deadly != lost.keys()):
            found.problems.append(f"lost {sorted(lost)}, deadly {sorted(self._deadly)}")

    def _due(self, lost: Counter[Any]) -> Counter[Any]:
        good = {o: r for o, r in self._records.items() if o not in lost and self._sound(r)}
        return Counter((o, _frozen(self._row(r))) for o, r in good.items())

    def _row(self, record: Any) -> dict[str, Any]:
        row = {"id": number_of(record), "name": json.loads(record.value).get("name"), **self._more(record)}
        return {name: value for name, value in row.items() if name not in self._sandbox.unkept}

    def _lost(self, ledger: Ledger) -> Counter[Any]:
        spans = [row.range for row in ledger.offsets.lost(self._sandbox.name)]
        return Counter((r.topic, r.partition, offset) for r in spans for offset in range(r.start, r.end))

    def _books(self, ledger: Ledger, found: Found) -> None:
        with mock.patch.dict(os.environ, self._sandbox.env(), clear=True), on_path(MODULES):
            spec, box = load(self._sandbox.file), self._sandbox
            report = deep_audit(ledger, spec, Home.from_env()) if box.deep else audit(ledger, spec.name)
        found.problems += [f"audit: {problem}" for problem in report.problems]


def _rows(box: Box) -> Counter[Any]:
    """The multiset of the sink's rows: where each comes from, and what it holds but for who wrote it."""
    found: Counter[Any] = Counter()
    for row in box.rows_of_sink():
        place = _place(row)
        found[place, _frozen({k: v for k, v in row.items() if not k.startswith("_")})] += 1
    return found


def _refused(box: Box) -> Counter[Any]:
    """The multiset of the quarantine's: where each comes from, key and value."""
    return Counter((_place(row), box.token(row["key"], row["value"])) for row in box.refused())


def _place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["_topic"], row["_partition"], row["_offset"]


def _frozen(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((k, _frozen(v) if isinstance(v, dict) else v) for k, v in row.items()))
