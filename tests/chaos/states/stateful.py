"""Scenarios of state that Spark keeps from run to run: windows, panes, the keys of ``dedupe``, and a processor's.

What must be where is computed by the models of ``tests/chaos/models`` from the topic alone: also which records are a
batch, and after which batch Spark plans one without records. Elsewhere the models ask the checkpoint for that, which
would hide a batch that should not be there.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.chaos.models import dedupe, processor, windows
from tests.chaos.models.planned import EPOCH, FUTURE, Place
from tests.chaos.states.boxes import Box
from tests.chaos.states.oracle import Found, Oracle, ledger_of
from tests.chaos.states.scenarios import Scenario
from tests.fixtures.runs import consume

__all__ = ["STATEFUL", "Deduped", "Processed", "Windowed"]

_PARTITIONS = 2
_NO_JSON = b"{"
_AHEAD = windows.event(FUTURE, "a", 1)
_AHEAD_OF_ALL = json.dumps(
    {"tailnum": "N1", "dep_time": 1, "minute": 0, "time_hour": FUTURE.isoformat()}
).encode()  # fmt: skip


def _places(runs: tuple[int, ...], size: int) -> Iterator[list[Place]]:
    """Yield the places of each batch: those of ``size`` records, then none at the end of each run.

    Parameters
    ----------
    runs
        Up to which offset of each partition a run read.
    """
    at = 0
    for end in runs:
        while at < end:
            to = min(at + size // _PARTITIONS, end)
            yield [(p, offset) for p in range(_PARTITIONS) for offset in range(at, to)]
            at = to
        yield []


@dataclass(frozen=True)
class _Stateful(Scenario):
    """A run that follows another; or, without ``earlier``, the first one.

    Each partition has as many records as the other: then a batch has the same number of each.
    """

    records: int = 12
    size: int = 6

    @property
    def runs(self) -> tuple[int, ...]:
        """Up to which offset of each partition a run reads."""
        half = self.records // _PARTITIONS
        return (half, 2 * half) if self.earlier else (half,)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The minutes between which each run has events."""
        ends = (0, 90, 250) if self.earlier else (0, 250)
        return list(itertools.pairwise(ends))

    def model(self, box: Box) -> Any:
        """Return a model without records, whose batches are those of the checkpoint."""
        raise NotImplementedError

    def sound(self, value: bytes) -> Any:
        """Return what the model has of a record; None if it is refused."""
        raise NotImplementedError

    def judge(self, oracle: _StatefulOracle, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        raise NotImplementedError

    def oracle(self, box: Box) -> Oracle:
        return _StatefulOracle(self, box)


class _StatefulOracle(Oracle):
    """What sink, quarantine, account and state hold, by a model."""

    def __init__(self, scenario: _Stateful, box: Box, *, closed: bool = False) -> None:
        super().__init__(box)
        self._scenario, self.closed = scenario, closed
        self.stream = scenario.model(box)
        self.stream.places = lambda: enumerate(_places(scenario.runs, scenario.size))
        for record in consume(box.broker, box.topic):
            self.stream.records[record.partition, record.offset] = scenario.sound(record.value)
        self._bad = {(box.topic, *place) for place, record in self.stream.records.items() if record is None}

    def look(self, *, live: bool) -> Found:
        box, found = self._sandbox, Found()
        with ledger_of(box) as ledger:
            self._books(ledger, found)
            found.lost = sum(self._lost(ledger).values())
            names = ("written", "filtered", "quarantined", "absent", "lost")
            split = {part: sum(getattr(a.counts, part) for a in ledger.offsets.accounts(box.name)) for part in names}
            self._scenario.judge(self, ledger, split, found)
        found.unaccounted += max(0, len(self._records) - sum(split.values()))
        refused, want = box.quarantine(), Counter(self._bad)
        self.compare("quarantine", refused, want, found)
        found.doubled += sum((refused - want).values())
        found.unaccounted += sum((want - refused).values())
        found.problems += self._orphans()
        return found

    def rows(self, want: Counter[Any], named: int, found: Found) -> None:
        """Compare the sink's rows; so many of their first columns say which row it is."""
        held = self.stream.held()
        self.compare("sink", held, want, found)
        ids, due = (Counter(row[:named] for row in rows.elements()) for rows in (held, want))
        found.doubled += sum(n - 1 for n in ids.values())
        found.unaccounted += sum((due - ids).values())

    def split(self, split: Mapping[str, int], filtered: int, found: Found) -> None:
        refused = len(self._bad)
        written = len(self.stream.records) - refused - filtered
        want = {"written": written, "filtered": filtered, "quarantined": refused, "absent": 0, "lost": 0}
        if split != want:
            found.problems.append(f"the ledger says {split}, and there are {want}")

    def counted(self, ledger: Any, fact: str, want: Mapping[str, int], found: Found) -> None:
        """Compare what the ledger counts of a fact, over all runs."""
        name, counts = self._sandbox.name, Counter[str]()
        for run in ledger.runs.newest(name, limit=100):
            of_run = ledger.runs.account(name, run.run).get(fact, {})
            counts.update({key: of_run.get(key, 0) for key in want})
        if counts != Counter(want):
            found.problems.append(f"the ledger says of {fact} {dict(counts)}, and there are {dict(want)}")

    def state(self, values: tuple[str, ...] = ("key", "value"), **options: Any) -> list[tuple[Any, Any]]:
        """Return keys and values of the state, as Spark reads it."""
        spark = self._sandbox.spark
        assert spark is not None
        _ = spark.streams.active  # starts what its reader asks
        state = spark.read.format("statestore").options(**options).load(str(self.stream.checkpoint))
        return [(row[0], row[1]) for row in state.select(*values).collect()]

    def _orphans(self) -> list[str]:
        found = [f"orphan {path}" for path in self._sandbox.astray()]
        checkpoint = self.stream.checkpoint
        done = max((int(f.name) for f in (checkpoint / "commits").iterdir() if f.name.isdigit()), default=-1)
        for share in sorted((checkpoint / "state" / "0").iterdir()):
            if share.name.isdigit():
                made = {f.name.partition(".")[0] for f in share.iterdir() if f.suffix in (".changelog", ".zip")}
                versions = sorted(int(name) for name in made if name.isdigit())
                if not versions or versions[-1] != done + 1:
                    found.append(f"share {share.name} of the state has versions {versions} after batch {done}")
        return found


def _decoded(value: bytes) -> tuple[datetime, dict[str, Any]] | None:
    try:
        row = json.loads(value)
        at = datetime.fromisoformat(row["at"])
    except (ValueError, TypeError):
        return None
    return None if at == FUTURE else (at, row)


@dataclass(frozen=True)
class Windowed(_Stateful):
    """Windows that the run closes, or updates, and records that come late.

    Afterwards ``flush`` closes what is open, so that what the sink holds tells of the state.
    """

    kind: str = "window"
    window: Mapping[str, Any] = field(default_factory=dict)

    def model(self, box: Box) -> windows.Stream:
        kind = windows.Updated if self.window.get("output") == "update" else windows.Stream
        return kind(box, dict(self.window), recovery=self.strategy, limit=self.size)

    def sound(self, value: bytes) -> windows.Record | None:
        found = _decoded(value)
        return None if found is None else (found[0], found[1]["k"], found[1]["v"])

    def prepare(self, box: Box) -> None:
        """Leave windows open behind a first run, if there is one."""
        stream = self.model(box)
        stream.configure()
        for first, until in self.spans:
            if first:
                box.run("before")
            stream.feed(0, until, self.records - 4)
            stream.feed(until, until + 1, 2)  # the last batch moves the watermark, and another follows it
            box.produce([(0, b"", _NO_JSON), (1, b"", _AHEAD)])

    def later(self, box: Box) -> bool:
        if self.window.get("output") == "update":
            return False
        rests = {**self.window, "flush": {"after": "0s"}}
        windows.Stream(box, rests, recovery=self.strategy, limit=self.size).configure()
        box.run("flushes")
        return True

    def last(self, box: Box) -> Oracle:
        return _StatefulOracle(self, box, closed=True)

    def judge(self, oracle: _StatefulOracle, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        stream = oracle.stream
        want, late, partly = stream.expected()
        *_, state = stream.model()
        open_ones = windows.rows_of(state)
        if oracle.closed:
            want = want + open_ones
        oracle.rows(want, 3, found)
        oracle.split(split, late, found)
        oracle.counted(ledger, "windows", {"late": late, "partly_late": partly}, found)
        if not isinstance(stream, windows.Updated):
            oracle.counted(ledger, "windows", {"rows": sum(want.values())}, found)
        if "panes" not in stream.window:
            kept = Counter(_window(key, value) for key, value in oracle.state())
            oracle.compare("state", kept, Counter() if oracle.closed else open_ones, found)


def _window(key: Any, value: Any) -> tuple[Any, ...]:
    span = key[0]
    return span[0].astimezone(UTC), span[1].astimezone(UTC), key[1], value[0], value[1]


@dataclass(frozen=True)
class Deduped(_Stateful):
    """Duplicates within a run and of the one before, records that come late, keys that are forgotten."""

    kind: str = "dedupe"

    def model(self, box: Box) -> dedupe.Stream:
        return dedupe.Stream(box, batch=self.size, recovery=self.strategy)

    def sound(self, value: bytes) -> dedupe.Made:
        found = _decoded(value)
        return None if found is None or found[1]["id"] is None else (found[0], found[1]["id"])

    def prepare(self, box: Box) -> None:
        """Let a first run remember keys, if there is one."""
        stream = self.model(box)
        stream.configure()
        for first, until in self.spans:
            if first:
                box.run("before")
            stream.feed(0, until, self.records - 6, ids=3)
            stream.feed(until, until + 1, 2, bad=True, ids=3)

    def judge(self, oracle: _StatefulOracle, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        box, rows = oracle.stream.sandbox, oracle.stream.sandbox.sink()
        found.doubled += sum(n - 1 for n in rows.values())
        try:
            due, late, doubled, remembered = oracle.stream.model()
        except (ValueError, AssertionError) as error:  # a key that is due is there twice, or not at all
            found.unaccounted += 1
            found.problems.append(f"sink: {sorted(rows)}: {error}")
            return
        oracle.compare("sink", rows, Counter((box.topic, *place) for place in due), found)
        oracle.split(split, late + doubled, found)
        oracle.counted(ledger, "dedupe", {"duplicate": doubled, "late": late}, found)
        kept = {key[0]: EPOCH + timedelta(microseconds=value[0]) for key, value in oracle.state()}
        if kept != remembered:
            found.problems.append(f"state: {kept}, and not {remembered}")


@dataclass(frozen=True)
class Processed(_Stateful):
    """Rotations of aircraft that end in the first run or in this one, or go on; one leg comes late, one out of turn."""

    kind: str = "processor"

    def model(self, box: Box) -> processor.Feed:
        return processor.Feed(box, self.strategy, watermark="2h", limit=self.size)

    def sound(self, value: bytes) -> processor.Flight | None:
        return None if value in (_NO_JSON, _AHEAD_OF_ALL) else json.loads(value)

    def prepare(self, box: Box) -> None:
        """Leave rotations open behind a first run."""
        stream, found = self.model(box), processor.flights(3, 3)[:20]
        stream.configure()
        held = [found.pop(number) for number in (10, 2)]
        for number, part in enumerate((found[:10], [*held, *found[10:]])):
            if number:
                box.run("before")
            stream.put(part)  # the last ones move the watermark, and another batch follows
            box.produce([(0, b"", _NO_JSON), (1, b"", _AHEAD_OF_ALL)])

    def judge(self, oracle: _StatefulOracle, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        want, left, late, dropped, now = oracle.stream.model()
        oracle.rows(want, 2, found)
        oracle.split(split, late + dropped, found)
        oracle.counted(ledger, "processor", {"rows": sum(want.values()), "late": late}, found)
        departures = Counter((tail, processor.departure(leg)) for tail, legs in left.items() for leg in legs)
        legs = oracle.state(("key", "list_element.departs"), stateVarName="legs", flattenCollectionTypes="true")
        kept = Counter((key[0], EPOCH + timedelta(microseconds=departs)) for key, departs in legs)
        oracle.compare("state: legs", kept, departures, found)
        ends = Counter((tail, at + processor.IDLE) for tail, at in departures.elements())
        timers = oracle.state(("key", "expiration_timestamp_ms"), readRegisteredTimers="true")
        running = Counter((key[0], EPOCH + timedelta(milliseconds=at)) for key, at in timers)
        due = Counter({timer: count for timer, count in ends.items() if timer[1] > now})
        oracle.compare("state: timers", running, due, found)


_APPEND = Windowed("window-append", "replay", earlier="replay", window=windows.SLIDING)

STATEFUL = (
    _APPEND,
    replace(_APPEND, name="window-update", window={**windows.SLIDING, "output": "update"}),
    replace(_APPEND, name="window-panes", window=windows.PANES),
    replace(_APPEND, name="window-first", earlier=None),
    replace(_APPEND, name="window-append-wal", strategy="wal", earlier="wal"),
    Deduped("dedupe", "replay", earlier="replay"),
    Deduped("dedupe-wal", "wal", earlier="wal"),
    Processed("processor", "replay", earlier="replay"),
    Processed("processor-wal", "wal", earlier="wal"),
)
