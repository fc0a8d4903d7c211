"""Scenarios of each sink but Delta that appends: runs of two batches, and an interval."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.chaos.states.boxes import (
    Box,
    ConsoleBox,
    FolderBox,
    IcebergBox,
    PostgresBox,
    TopicBox,
    WriterBox,
)
from tests.chaos.states.oracle import Found, Oracle, number_of
from tests.chaos.states.scenarios import Scenario

__all__ = ["SINKS", "Into", "Upserting"]

_KEYS = 3


@dataclass(frozen=True)
class Into(Scenario):
    """A scenario of :mod:`.scenarios` into another sink."""

    records: int = 10
    size: int = 6
    into: type[Box] = Box

    @property
    def box(self) -> type[Box]:
        """The kind of sandbox."""
        return self.into

    def oracle(self, box: Box) -> Oracle | None:
        """Return what judges its states; the writer of the tests notes no names."""
        return Oracle(box, without=("name",)) if self.into is WriterBox else super().oracle(box)


@dataclass(frozen=True)
class Upserting(Into):
    """Records of a few keys, into a table that keeps the newest of each; one batch replaces rows of another."""

    kind: str = "upsert"

    def prepare(self, box: Box) -> None:
        """Let them wait; a key is in one partition, so the later offset is the newer one."""
        sink = {"postgres": {"table": "orders"}} if self.into is PostgresBox else {"delta": {"path": "table"}}
        ((kind, where),) = sink.items()
        upsert = {kind: {**where, "mode": "upsert", "key": ["id"]}}
        box.deep = False
        box.configure(kafka={"max_records_per_batch": self.size}, recovery=self.strategy, sink=upsert)
        values = [{"id": n % _KEYS, "name": f"n{n}"} for n in range(self.records)]
        records = [(v["id"] % 2, b"k", json.dumps(v).encode()) for v in values]
        box.produce([(0, b"k", b"{"), *records, (1, b"k", b"[")])

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states."""
        box.deep = False
        return _Newest(box)

    def last(self, box: Box) -> Oracle:
        """Return the same."""
        return self.oracle(box)


class _Newest(Oracle):
    """What is there of each key is its newest row; the account says of each record that it was applied."""

    def _compare(self, rows: Counter[Any], refused: Counter[Any], lost: Counter[Any], found: Found) -> None:
        newest: dict[int, Any] = {}
        for place, record in sorted(self._records.items()):
            number = number_of(record)
            if number is not None:
                newest[number] = place
        want = Counter({row: 1 for row in self._due(Counter()) if row[0] in newest.values()})
        keys = Counter(dict(row)["id"] for (_, row), count in rows.items() for _ in range(count))
        found.doubled += sum(count - 1 for count in keys.values())
        found.unaccounted += len(newest.keys() - keys.keys())
        if rows != want:
            found.problems.append(f"sink: too much {rows - want}, missing {want - rows}")
        bad = Counter((o, self._sandbox.token(r.key, r.value)) for o, r in self._records.items() if not self._sound(r))
        if refused != bad or lost:
            found.problems.append(f"quarantine {refused}, and not {bad}; lost {lost}")
        applied = sum(self._sound(r) for r in self._records.values())
        found.unaccounted += abs(applied - self._written)
        if applied != self._written:
            found.problems.append(f"the ledger says {self._written} written, and {applied} are sound")


SINKS = (
    Into("iceberg", "replay", into=IcebergBox),
    Into("iceberg-interval", "replay", kind="interval", into=IcebergBox),
    Into("files", "replay", into=FolderBox),
    Into("postgres", "replay", into=PostgresBox),
    Upserting("postgres-upsert", "replay", into=PostgresBox),
    Upserting("delta-upsert", "replay"),
    Into("kafka", "replay", into=TopicBox),
    Into("foreach", "replay", into=WriterBox),
    Into("console", "replay", into=ConsoleBox),
)
