"""Scenarios of state that Spark keeps from run to run: windows, panes, the keys of ``dedupe``, and a processor's.

What must be where is computed in plain Python from the topic alone: also which records are a batch, and after which
batch Spark plans one without records. The models of ``test_windows.py`` and ``test_dedupe.py`` ask the checkpoint for
that, which would hide a batch that nobody made up. So does that of ``test_processor.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.chaos import test_dedupe as doubles
from tests.chaos import test_processor as rotations
from tests.chaos import test_windows as windows
from tests.chaos.states.boxes import Box
from tests.chaos.states.oracle import Found, Oracle, ledger_of
from tests.chaos.states.scenarios import Scenario
from tests.fixtures.runs import consume

__all__ = ["STATEFUL", "Deduped", "Processed", "Windowed"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITIONS = 2
_REFUSED = [(0, b"", b"{"), (1, b"", json.dumps({"at": windows.FUTURE.isoformat(), "k": "a", "v": 1}).encode())]
_RESTS = {"flush": {"after": "0s"}}


def _chunks(records: Mapping[tuple[int, int], Any], runs: tuple[int, ...], size: int) -> Iterator[dict[Any, Any]]:
    """Yield the sound records of each batch: ``size`` records, then one without any at the end of each run.

    Parameters
    ----------
    runs
        Up to which offset of each partition a run read.
    """
    at = 0
    for end in runs:
        while at < end:
            to = min(at + size // _PARTITIONS, end)
            places = [(p, offset) for p in range(_PARTITIONS) for offset in range(at, to)]
            yield {place: records[place] for place in places if records[place] is not None}
            at = to
        yield {}


@dataclass
class _Append(windows.Stream):
    runs: tuple[int, ...] = ()

    def batches(self) -> Iterator[tuple[int, list[tuple[datetime, str, int]]]]:
        """Yield the batches that there must be."""
        for number, chunk in enumerate(_chunks(self.records, self.runs, self.limit)):
            yield number, list(chunk.values())


class _Update(windows.Updated, _Append):
    pass


@dataclass
class _First(doubles.Stream):
    runs: tuple[int, ...] = ()

    def batches(self) -> Iterator[dict[tuple[int, int], tuple[datetime, int]]]:
        """Yield the batches that there must be."""
        return _chunks(self.records, self.runs, self.batch)


@dataclass
class _Rotations(rotations.Feed):
    runs: tuple[int, ...] = ()

    def batches(self) -> Iterator[list[rotations.Flight]]:
        """Yield the batches that there must be."""
        for chunk in _chunks(self.records, self.runs, self.limit):
            yield list(chunk.values())


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


@dataclass(frozen=True)
class Windowed(_Stateful):
    """Windows that the run closes, or updates, and records that come late.

    Afterwards ``flush`` closes what is open, so that what the sink holds tells of the state.
    """

    kind: str = "window"
    window: Mapping[str, Any] = field(default_factory=dict)

    def stream(self, box: Box) -> _Append:
        """Return the model, with the records of the topic."""
        kind = _Update if self.window.get("output") == "update" else _Append
        stream = kind(box, dict(self.window), recovery=self.strategy, limit=self.size, runs=self.runs)
        for record in consume(box.broker, box.topic):
            stream.records[record.partition, record.offset] = _absorbed(record.value)
        return stream

    def prepare(self, box: Box) -> None:
        """Leave windows open behind a first run, if there is one."""
        stream = windows.Stream(box, dict(self.window), recovery=self.strategy, limit=self.size)
        stream.configure()
        for number, until in enumerate((90, 250) if self.earlier else (250,)):
            if number:
                box.run("before")
            stream.feed(0, until, self.records - 4)
            stream.feed(until, until + 1, 2)  # the last batch moves the watermark, and another follows it
            box.produce(_REFUSED)

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states."""
        return _WindowOracle(self, box)

    def later(self, box: Box) -> bool:
        """Close all windows."""
        if self.window.get("output") == "update":
            return False
        windows.Stream(box, {**self.window, **_RESTS}, recovery=self.strategy, limit=self.size).configure()
        box.run("flushes")
        return True

    def last(self, box: Box) -> Oracle:
        """Return what judges its states after :meth:`later`."""
        return _WindowOracle(self, box, closed=True)


def _absorbed(value: bytes) -> tuple[datetime, str, int] | None:
    found = _decoded(value)
    return None if found is None else (found[0], found[1]["k"], found[1]["v"])


def _decoded(value: bytes) -> tuple[datetime, dict[str, Any]] | None:
    try:
        row = json.loads(value)
        at = datetime.fromisoformat(row["at"])
    except (ValueError, TypeError):
        return None
    return None if at == windows.FUTURE else (at, row)


class _StatefulOracle(Oracle):
    """What sink, quarantine, account and state hold, by a model."""

    def __init__(self, scenario: _Stateful, box: Box) -> None:
        super().__init__(box)
        self._scenario = scenario
        self._bad: set[Any] = set()

    def look(self, *, live: bool) -> Found:
        """Compare sink, quarantine, ledger, files and state with the model."""
        box, found = self._sandbox, Found()
        with ledger_of(box) as ledger:
            self._books(ledger, found)
            found.lost = sum(self._lost(ledger).values())
            names = ("written", "filtered", "quarantined", "absent", "lost")
            split = {part: sum(getattr(a.counts, part) for a in ledger.accounts(box.name)) for part in names}
            self._judge(ledger, split, found)
        found.unaccounted += max(0, len(self._records) - sum(split.values()))
        refused, want = box.quarantine(), Counter(self._bad)
        if refused != want:
            found.problems.append(f"quarantine: too much {refused - want}, missing {want - refused}")
            found.doubled += sum((refused - want).values())
            found.unaccounted += sum((want - refused).values())
        found.problems += self._orphans()
        return found

    def _judge(self, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        raise NotImplementedError

    def _differs(self, split: Mapping[str, int], filtered: int, written: int, found: Found) -> None:
        want = {"written": written, "filtered": filtered, "quarantined": len(self._bad), "absent": 0, "lost": 0}
        if split != want:
            found.problems.append(f"the ledger says {split}, and there are {want}")

    def _orphans(self) -> list[str]:
        box = self._sandbox
        found = []
        for path in ("table", "table_quarantine", f"logs/{box.name}"):
            found += [f"orphan {path}/batches/{folder}" for folder in sorted(box.never_committed(path))]
        checkpoint = self._checkpoint
        done = max((int(f.name) for f in (checkpoint / "commits").iterdir() if f.name.isdigit()), default=-1)
        for share in sorted((checkpoint / "state" / "0").iterdir()):
            if share.name.isdigit():
                made = {f.name.partition(".")[0] for f in share.iterdir() if f.suffix in (".changelog", ".zip")}
                versions = sorted(int(name) for name in made if name.isdigit())
                if not versions or versions[-1] != done + 1:
                    found.append(f"share {share.name} of the state has versions {versions} after batch {done}")
        return found

    @property
    def _checkpoint(self) -> Any:
        epoch = "epoch-1-applied" if self._scenario.strategy == "wal" else "epoch-1"
        return self._sandbox.home / "checkpoints" / self._sandbox.name / epoch

    def _state(self, values: tuple[str, ...] = ("key", "value"), **options: Any) -> list[tuple[Any, Any]]:
        """Return keys and values of the state, as Spark reads it."""
        spark = self._sandbox.spark
        assert spark is not None
        _ = spark.streams.active  # starts what its reader asks
        state = spark.read.format("statestore").options(**options).load(str(self._checkpoint))
        return [(row[0], row[1]) for row in state.select(*values).collect()]


class _WindowOracle(_StatefulOracle):
    def __init__(self, scenario: Windowed, box: Box, *, closed: bool = False) -> None:
        super().__init__(scenario, box)
        self._stream, self._closed = scenario.stream(box), closed
        self._bad = {(box.topic, *place) for place, record in self._stream.records.items() if record is None}

    def _judge(self, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        stream, box = self._stream, self._sandbox
        want, late, partly = stream.expected()
        *_, state = stream.model()
        open_ones = Counter((*key, len(values), sum(values)) for key, values in state.items())
        if self._closed:
            want = want + open_ones
        held = stream.held()
        if held != want:
            found.problems.append(f"sink: too much {held - want}, missing {want - held}")
        bounds, due = (Counter(row[:3] for row in rows.elements()) for rows in (held, want))
        found.doubled += sum(n - 1 for n in bounds.values())
        found.unaccounted += sum((due - bounds).values())
        self._differs(split, late, len(stream.records) - len(self._bad) - late, found)
        told: Counter[str] = Counter()
        for run in ledger.runs(box.name, limit=100):
            moved = ledger.windows(box.name, run.run)
            told.update({key: moved.get(key, 0) for key in ("rows", "late", "partly_late")})
        if told["late"] != late or told["partly_late"] != partly:
            found.problems.append(f"the ledger says {dict(told)}, and {late} are late, {partly} of them partly")
        if not isinstance(stream, _Update) and told["rows"] != sum(want.values()):
            found.problems.append(f"the ledger says {told['rows']} windows, and there are {sum(want.values())}")
        if "panes" not in stream.window:
            kept = Counter(_window(key, value) for key, value in self._state())
            due_open = Counter() if self._closed else open_ones
            if kept != due_open:
                found.problems.append(f"state: too much {kept - due_open}, missing {due_open - kept}")


def _window(key: Any, value: Any) -> tuple[Any, ...]:
    span = key[0]
    return span[0].astimezone(UTC), span[1].astimezone(UTC), key[1], value[0], value[1]


@dataclass(frozen=True)
class Deduped(_Stateful):
    """Duplicates within a run and of the one before, records that come late, keys that are forgotten."""

    kind: str = "dedupe"

    def stream(self, box: Box) -> _First:
        """Return the model, with the records of the topic."""
        stream = _First(box, batch=self.size, recovery=self.strategy, runs=self.runs)
        for record in consume(box.broker, box.topic):
            found = _decoded(record.value)
            sound = found is not None and found[1]["id"] is not None
            stream.records[record.partition, record.offset] = (found[0], found[1]["id"]) if found and sound else None
        return stream

    def prepare(self, box: Box) -> None:
        """Let a first run remember keys, if there is one."""
        stream = doubles.Stream(box, batch=self.size, recovery=self.strategy)
        stream.configure()
        for number, until in enumerate((90, 250) if self.earlier else (250,)):
            if number:
                box.run("before")
            stream.feed(0, until, self.records - 6, ids=3)
            stream.feed(until, until + 1, 2, bad=True, ids=3)

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states."""
        return _DedupeOracle(self, box)


class _DedupeOracle(_StatefulOracle):
    def __init__(self, scenario: Deduped, box: Box) -> None:
        super().__init__(scenario, box)
        self._stream = scenario.stream(box)
        self._bad = {(box.topic, *place) for place, record in self._stream.records.items() if record is None}

    def _judge(self, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        stream, box = self._stream, self._sandbox
        rows = box.sink()
        found.doubled += sum(n - 1 for n in rows.values())
        try:
            due, late, doubled, remembered = stream.model()
        except (ValueError, AssertionError) as error:  # a key that is due is there twice, or not at all
            found.unaccounted += 1
            found.problems.append(f"sink: {sorted(rows)}: {error}")
            return
        want = Counter((box.topic, *place) for place in due)
        if rows != want:
            found.problems.append(f"sink: too much {rows - want}, missing {want - rows}")
        self._differs(split, late + doubled, len(due), found)
        told: Counter[str] = Counter()
        for run in ledger.runs(box.name, limit=100):
            dropped = ledger.dedupe(box.name, run.run)
            told.update({key: dropped.get(key, 0) for key in ("duplicate", "late")})
        if told != Counter({"duplicate": doubled, "late": late}):
            found.problems.append(f"the ledger says {dict(told)}, and {doubled} are duplicates, {late} late")
        kept = {key[0]: _EPOCH + timedelta(microseconds=value[0]) for key, value in self._state()}
        if kept != remembered:
            found.problems.append(f"state: {kept}, and not {remembered}")


@dataclass(frozen=True)
class Processed(_Stateful):
    """Rotations of aircraft that end in the first run or in this one, or go on; one leg comes late, one out of turn."""

    kind: str = "processor"

    def stream(self, box: Box) -> _Rotations:
        """Return the model, with the records of the topic."""
        stream = self._feed(box)
        for record in consume(box.broker, box.topic):
            sound = record.value not in (_NO_JSON, _AHEAD)
            stream.records[record.partition, record.offset] = json.loads(record.value) if sound else None
        return stream

    def prepare(self, box: Box) -> None:
        """Leave rotations open behind a first run."""
        stream, found = self._feed(box), rotations.flights(3, 3)[:20]
        stream.configure()
        held = [found.pop(number) for number in (10, 2)]
        for number, part in enumerate((found[:10], [*held, *found[10:]])):
            if number:
                box.run("before")
            stream.put(part)  # the last ones move the watermark, and another batch follows
            box.produce([(0, b"", _NO_JSON), (1, b"", _AHEAD)])

    def oracle(self, box: Box) -> Oracle:
        """Return what judges its states."""
        return _ProcessorOracle(self, box)

    def _feed(self, box: Box) -> _Rotations:
        return _Rotations(box, self.strategy, watermark="2h", limit=self.size, runs=self.runs)


_NO_JSON = b"{"
_AHEAD = json.dumps(
    {"tailnum": "N1", "dep_time": 1, "minute": 0, "time_hour": rotations.FUTURE.isoformat()}
).encode()  # fmt: skip


class _ProcessorOracle(_StatefulOracle):
    def __init__(self, scenario: Processed, box: Box) -> None:
        super().__init__(scenario, box)
        self._stream = scenario.stream(box)
        self._bad = {(box.topic, *place) for place, record in self._stream.records.items() if record is None}

    def _judge(self, ledger: Any, split: Mapping[str, int], found: Found) -> None:
        stream, box = self._stream, self._sandbox
        want, left, late, dropped, now = stream.model()
        held = stream.held()
        if held != want:
            found.problems.append(f"sink: too much {held - want}, missing {want - held}")
        begun, due = (Counter(row[:2] for row in rows.elements()) for rows in (held, want))
        found.doubled += sum(n - 1 for n in begun.values())
        found.unaccounted += sum((due - begun).values())
        self._differs(split, late + dropped, len(stream.records) - len(self._bad) - late - dropped, found)
        told: Counter[str] = Counter()
        for run in ledger.runs(box.name, limit=100):
            did = ledger.processed(box.name, run.run)
            told.update({key: did.get(key, 0) for key in ("rows", "late")})
        if told != Counter({"rows": sum(want.values()), "late": late}):
            found.problems.append(f"the ledger says {dict(told)}, and {sum(want.values())} are rows, {late} late")
        departures = [(tail, rotations.departure(leg)) for tail, legs in left.items() for leg in legs]
        ends = [(tail, at + rotations.IDLE) for tail, at in departures]
        timers = Counter((tail, end) for tail, end in ends if end > now)
        legs = self._state(("key", "list_element.departs"), stateVarName="legs", flattenCollectionTypes="true")
        kept = Counter((key[0], _EPOCH + timedelta(microseconds=departs)) for key, departs in legs)
        if kept != Counter(departures):
            found.problems.append(f"state: legs {kept}, and not {departures}")
        set_ = self._state(("key", "expiration_timestamp_ms"), readRegisteredTimers="true")
        running = Counter((key[0], _EPOCH + timedelta(milliseconds=at)) for key, at in set_)
        if running != timers:
            found.problems.append(f"state: timers {running}, and not {timers}")


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
