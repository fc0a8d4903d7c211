"""Scenarios of each source but a topic by its name: a run of two batches behind another one, or a first one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tests.chaos.states.boxes import Box
from tests.chaos.states.oracle import Found, Oracle, ledger_of
from tests.chaos.states.origins import (
    AvroBox,
    ClustersBox,
    FileBox,
    JdbcBox,
    NatsBox,
    ParquetBox,
    PatternBox,
    RateBox,
    RedisBox,
    SocketBox,
    TimedBox,
)
from tests.chaos.states.scenarios import Scenario
from tests.fixtures.runs import good

__all__ = ["SOURCES", "From", "MadeUp", "Once"]


@dataclass(frozen=True)
class From(Scenario):
    """A scenario of :mod:`.scenarios` from another source."""

    records: int = 6
    size: int = 6
    origin: type[Box] = Box

    @property
    def box(self) -> type[Box]:
        """The kind of sandbox."""
        return self.origin

    def prepare(self, box: Box) -> None:
        """Let some wait, and then some more: two files, or a topic that appears."""
        super().prepare(box)
        if isinstance(box, PatternBox):
            box.produce([(n % 2, b"k", good(100 + n)) for n in range(4)], box.born())
        else:
            box.feed(4)


@dataclass(frozen=True)
class Once(From):
    """A source that sends each line once: lines that a dead run had not landed are gone, and none of the others is."""

    origin: type[Box] = SocketBox

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states."""
        return _Sent(box)


class _Sent(Oracle):
    """What is due depends on whether the run that died had landed its lines."""

    def look(self, *, live: bool) -> Found:
        """Compare with the lines that were sent and landed by now."""
        self._read()
        return super().look(live=live)


@dataclass(frozen=True)
class MadeUp(Scenario):
    """Rows that come with the time, so that a run finds more of them each time."""

    size: int = 40

    @property
    def box(self) -> type[Box]:
        """The kind of sandbox."""
        return RateBox

    @property
    def settles(self) -> bool:
        """Not even for a second."""
        return False

    def prepare(self, box: Box) -> None:
        """Have a minute of rows wait, from the first run on."""
        self._configure(box, self.strategy)

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states."""
        return _Numbers(box)


class _Numbers(Oracle):
    """Each partition has the rows from 0 to its position once, each with the number that its place has."""

    def look(self, *, live: bool) -> Found:
        """Compare sink, quarantine, ledger and files."""
        box, found = self._sandbox, Found()
        rows, refused = box.rows_of_sink(), box.refused()
        at = Counter((row["_partition"], row["_offset"]) for row in [*rows, *refused])
        with ledger_of(box) as ledger:
            self._books(ledger, found)
            accounts = ledger.accounts(box.name)
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


_FILES = From("file-json", "replay", earlier="replay", origin=FileBox)

SOURCES = (
    _FILES,
    replace(_FILES, name="file-parquet", origin=ParquetBox),
    replace(_FILES, name="file-avro", origin=AvroBox),
    replace(_FILES, name="jdbc", origin=JdbcBox),
    replace(_FILES, name="jdbc-time", origin=TimedBox),
    From("redis", "replay", origin=RedisBox),
    replace(_FILES, name="nats", origin=NatsBox),
    replace(_FILES, name="pattern", origin=PatternBox),
    replace(_FILES, name="clusters", origin=ClustersBox),
    MadeUp("rate", "replay"),
    Once("socket", "wal", earlier="wal"),
)
