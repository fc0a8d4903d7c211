"""What all models share: the batches that a checkpoint has, and the account of a pipeline's runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.fixtures.runs import Outcome, Sandbox

__all__ = ["BEGIN", "EPOCH", "FUTURE", "MINUTE", "Place", "Planned", "milliseconds", "minute"]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FUTURE = datetime(2900, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

Place = tuple[int, int]
"""Partition and offset."""


def minute(number: int) -> datetime:
    """Return the time so many minutes after the first event."""
    return BEGIN + number * MINUTE


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class Planned:
    """A pipeline, its records by place (None where one is refused), and the batches of an epoch."""

    sandbox: Sandbox
    recovery: str
    epoch: int
    records: Any
    begins: Mapping[int, int]
    """The offsets at which the epoch begins."""

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the epoch whose batches have state."""
        name = f"epoch-{self.epoch}-applied" if self.recovery == "wal" else f"epoch-{self.epoch}"
        return self.sandbox.home / "checkpoints" / self.sandbox.name / name

    def places(self) -> Iterator[tuple[int, list[Place]]]:
        """Yield each batch that the epoch's checkpoint has, with the places of its records."""
        before = {str(partition): offset for partition, offset in self.begins.items()}
        folder = self.checkpoint / "offsets"
        for number in sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit()):
            ends = json.loads((folder / str(number)).read_text().splitlines()[2])[self.sandbox.topic]
            yield number, [(int(p), offset) for p, end in ends.items() for offset in range(before.get(p, 0), end)]
            before = ends

    def run(self, name: str, **options: Any) -> Outcome:
        return self.sandbox.run(name, **options)

    def state(self, *options: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.sandbox.cli("state", str(self.sandbox.file), *options, "--json").stdout)
        return said

    def counted(self, fact: str, *keys: str) -> Counter[str]:
        """Return what the accounts of all runs say of a fact: the sums of its counts."""
        found = Counter[str]()
        for run in self.sandbox.ledger.runs.newest(self.sandbox.name, limit=1000):
            counts = self.sandbox.ledger.runs.account(self.sandbox.name, run.run).get(fact, {})
            found.update({key: counts.get(key, 0) for key in keys})
        return found

    def assert_split(self, filtered: int) -> None:
        """The account says that so many sound records were filtered, all others written, and the rest refused once."""
        sandbox, sound = self.sandbox, sum(record is not None for record in self.records.values())
        split = {part: sandbox.total(part) for part in ("written", "filtered", "quarantined", "absent", "lost")}
        refused = len(self.records) - sound
        assert split == dict(written=sound - filtered, filtered=filtered, quarantined=refused, absent=0, lost=0)
        quarantine = sandbox.quarantine()
        assert set(quarantine.values()) <= {1}
        assert sum(quarantine.values()) == refused
        sandbox.assert_balanced()
