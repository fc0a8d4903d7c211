"""Scenarios of each sink but Delta that appends, and of each source but a topic by its name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from tests.chaos.states import origins
from tests.chaos.states.boxes import Box, ConsoleBox, FolderBox, IcebergBox, PostgresBox, TopicBox, WriterBox
from tests.chaos.states.oracle import Found, Oracle, ledger_of, number_of
from tests.chaos.states.scenarios import Scenario

__all__ = ["SINKS", "SOURCES", "MadeUp", "Upserting"]

_KEYS = 3


@dataclass(frozen=True)
class Into(Scenario):
    """A run of two batches."""

    records: int = 10
    size: int = 6


@dataclass(frozen=True)
class Upserting(Into):
    """Records of a few keys, into a table that keeps the newest of each; one batch replaces rows of another."""

    kind: str = "upsert"

    def prepare(self, box: Box) -> None:
        """Let them wait; a key is in one partition, so the later offset is the newer one."""
        sink = {"postgres": {"table": "orders"}} if self.box is PostgresBox else {"delta": {"path": "table"}}
        ((kind, where),) = sink.items()
        upsert = {kind: {**where, "mode": "upsert", "key": ["id"], "sequence": "_offset"}}
        box.deep = False
        box.configure(kafka={"max_records_per_batch": self.size}, recovery=self.strategy, sink=upsert)
        values = [{"id": n % _KEYS, "name": f"n{n}"} for n in range(self.records)]
        records = [(v["id"] % 2, b"k", json.dumps(v).encode()) for v in values]
        box.produce([(0, b"k", b"{"), *records, (1, b"k", b"[")])

    def oracle(self, box: Box) -> Oracle:
        box.deep = False
        return _Newest(box)


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
        self.compare("sink", rows, want, found)
        bad = Counter((o, self._sandbox.token(r.key, r.value)) for o, r in self._records.items() if not self._sound(r))
        self.compare("quarantine", refused, bad, found)
        self.compare("lost", lost, Counter(), found)
        applied = sum(self._sound(r) for r in self._records.values())
        found.unaccounted += abs(applied - self._written)
        if applied != self._written:
            found.problems.append(f"the ledger says {self._written} written, and {applied} are sound")


SINKS = (
    Into("iceberg", "replay", box=IcebergBox),
    Into("iceberg-interval", "replay", kind="interval", box=IcebergBox),
    Into("files", "replay", box=FolderBox),
    Into("postgres", "replay", box=PostgresBox),
    Upserting("postgres-upsert", "replay", box=PostgresBox),
    Upserting("delta-upsert", "replay"),
    Into("kafka", "replay", box=TopicBox),
    Into("foreach", "replay", box=WriterBox),
    Into("console", "replay", box=ConsoleBox),
)


@dataclass(frozen=True)
class From(Scenario):
    """Records wait, and then some more: two files, or a topic that appears."""

    size: int = 6
    grows: bool = True


@dataclass(frozen=True)
class MadeUp(Scenario):
    """Rows that come with the time, so that a run finds more of them each time."""

    size: int = 40
    box: type[Box] = origins.RateBox

    @property
    def settles(self) -> bool:
        return False

    def prepare(self, box: Box) -> None:
        """Have a minute of rows wait, from the first run on."""
        self._configure(box, self.strategy)

    def oracle(self, box: Box) -> Oracle:
        return _Numbers(box)


class _Numbers(Oracle):
    """Each partition has the rows from 0 to its position once, each with the number that its place has."""

    def look(self, *, live: bool) -> Found:
        box, found = self._sandbox, Found()
        rows, refused = box.rows_of_sink(), box.refused()
        at = Counter((row["_partition"], row["_offset"]) for row in [*rows, *refused])
        with ledger_of(box) as ledger:
            self._books(ledger, found)
            accounts = ledger.offsets.accounts(box.name)
            written, quarantined, lost = (
                sum(getattr(a.counts, part) for a in accounts) for part in ("written", "quarantined", "lost")
            )
            ends: Counter[int] = Counter()
            for account in accounts:
                ends[account.range.partition] = max(ends[account.range.partition], account.range.end)
        due = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
        found.lost, found.doubled = lost, sum(count - 1 for count in at.values())
        found.unaccounted = len(due - at.keys())
        if lost or found.doubled or at.keys() != due or (written, quarantined) != (len(rows), len(refused)):
            found.problems.append(
                f"{written} written, {quarantined} quarantined, {lost} lost; of {ends}, there are {at}"
            )
        numbers = {(row["_partition"], row["_offset"]): row["value"] for row in rows}
        numbers |= {(row["_partition"], row["_offset"]): None for row in refused}
        wrong = [
            (place, value)
            for place, value in numbers.items()
            if value != (None if (2 * place[1] + place[0]) % 10 == 0 else 2 * place[1] + place[0])
        ]
        if wrong or len(due) < 60:
            found.problems.append(f"wrong values {wrong} of {len(due)} rows")
        found.problems += [f"orphan {path}" for path in box.astray()]
        return found


_FILES = From("file-json", "replay", earlier="replay", box=origins.FileBox)

SOURCES = (
    _FILES,
    replace(_FILES, name="file-parquet", box=origins.ParquetBox),
    replace(_FILES, name="file-avro", box=origins.AvroBox),
    replace(_FILES, name="jdbc", box=origins.JdbcBox),
    replace(_FILES, name="jdbc-time", box=origins.TimedBox),
    From("redis", "replay", box=origins.RedisBox),
    replace(_FILES, name="nats", box=origins.NatsBox),
    replace(_FILES, name="pattern", box=origins.PatternBox),
    replace(_FILES, name="clusters", box=origins.ClustersBox),
    MadeUp("rate", "replay"),
    From("socket", "wal", earlier="wal", box=origins.SocketBox),
)
