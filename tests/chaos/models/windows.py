"""Windows of event time: those with a size, panes and sessions, in each output mode, and with a held watermark."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.chaos.models.planned import BEGIN, EPOCH, FUTURE, MINUTE, Place, Planned, milliseconds, minute
from tests.fixtures.runs import Outcome, Sandbox

from sluice.delta.names import app_id

__all__ = [
    "BEGIN", "COMPLETE", "FUTURE", "HOURLY", "MINUTE", "PANES", "SESSIONS", "SLIDING", "UPDATED", "Completed", "Held",
    "HeldSessions", "HeldUpdated", "Record", "Rows", "Sessions", "State", "Stream", "Updated", "event", "length",
    "milliseconds", "minute", "rows_of", "stream_of",
]  # fmt: skip

HOURLY: dict[str, Any] = {
    "time": "at", "size": "1h", "by": ["k"], "aggregates": {"n": "count(*)", "total": "sum(v)"}, "watermark": "30m",
}  # fmt: skip
SLIDING = {**HOURLY, "size": "30m", "slide": "10m"}
PANES = {**SLIDING, "panes": "auto"}
SESSIONS = {key: value for key, value in HOURLY.items() if key != "size"} | {"gap": "10m"}
UPDATED = {**SLIDING, "output": "update"}
COMPLETE = {key: value for key, value in SLIDING.items() if key != "watermark"} | {"output": "complete"}

Record = tuple[datetime, str, int]
"""Event time, key and value."""
Rows = Counter[Any]
"""Begin, end, key, count and sum of windows."""
State = dict[tuple[datetime, datetime, str], list[int]]
"""The values of each window that is open."""


def event(at: datetime | None, k: str, v: Any) -> bytes:
    return json.dumps({"at": at.isoformat() if at else None, "k": k, "v": v}).encode()


def length(text: str) -> timedelta:
    return timedelta(**{{"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[text[-1]]: int(text[:-1])})


def _time(value: datetime | str) -> datetime:
    """Return a time of a row; JSON has it as text."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def rows_of(state: State) -> Rows:
    return Counter((*key, len(values), sum(values)) for key, values in state.items())


@dataclass
class Stream(Planned):
    """Windows that are written once, when they are closed."""

    sandbox: Sandbox
    window: dict[str, Any]
    records: dict[Place, Record | None] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    recovery: str = "replay"
    limit: int = 10
    epoch: int = 1
    begins: dict[int, int] = field(default_factory=dict)

    def configure(self, **keys: Any) -> None:
        self.sandbox.configure(
            **{
                "decode": {"json": {"schema": "at TIMESTAMP, k STRING, v INT"}},
                "window": self.window,
                "quality": {"max_quarantined": "100%"},
                "kafka": {"max_records_per_batch": self.limit},
                "recovery": self.recovery,
                **keys,
            }
        )

    def feed(
        self, first: int, last: int, count: int = 10, *, bad: bool = False, also: Sequence[datetime] = (),
        run: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Produce records with event times between two minutes, in random order, and others; and let a run follow."""
        values = [(at, "a", 1) for at in also]
        for _ in range(count):
            at = minute(self.chance.randrange(first, last))
            values.append((at, self.chance.choice("ab"), self.chance.randrange(100)))
        self.give(values, bad=bad)
        if run is not None:
            self.sandbox.run(run, **options)

    def give(self, values: Sequence[Record], *, bad: bool = False) -> None:
        """Produce records, and some that are refused."""
        made: list[tuple[int, bytes, Record | None]] = [(n % 2, event(*value), value) for n, value in enumerate(values)]
        if bad:  # not JSON, without an event time, and of the far future
            made += [(0, b"{", None), (1, event(None, "a", 1), None), (0, event(FUTURE, "a", 1), None)]
        placed = self.sandbox.produce([(partition, b"", value) for partition, value, _ in made])
        for (_, partition, offset), (*_, record) in zip(placed, made, strict=True):
            self.records[partition, offset] = record

    # --- the model -------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[tuple[int, list[Record]]]:
        for number, places in self.places():
            found = [self.records[place] for place in places]
            yield number, [record for record in found if record is not None]

    def before(self, number: int, now: datetime, records: Sequence[Record]) -> datetime:
        """Return the watermark by which a batch closes windows, from that after the batch before."""
        return now

    def after(self, number: int, now: datetime, records: Sequence[Record]) -> datetime:
        """Return the watermark after a batch, from that before it."""
        return max([now, *(at - length(self.window["watermark"]) for at, *_ in records)])

    def model(self) -> tuple[Rows, int, int, State]:
        """Return the rows of closed windows, the number of late and of partly late records, and the open windows."""
        late, partly, rows = 0, 0, Counter[Any]()
        older = now = EPOCH
        state: State = defaultdict(list)
        for number, records in self.batches():
            now = self.before(number, now, records)
            for at, k, v in records:
                spans = self.spans(at)
                absorbed = [span for span in spans if span[1] > older]
                late += not absorbed
                partly += 0 < len(absorbed) < len(spans)
                for span in absorbed:
                    state[*span, k].append(v)
            for key in [key for key in state if key[1] <= now]:
                rows += rows_of({key: state.pop(key)})
            older, now = now, self.after(number, now, records)
        return rows, late, partly, state

    def spans(self, at: datetime) -> list[tuple[datetime, datetime]]:
        size, slide = length(self.window["size"]), length(self.window.get("slide", self.window["size"]))
        start = at - (at - EPOCH) % slide
        found = []
        while start + size > at:
            found.append((start, start + size))
            start -= slide
        return found

    def expected(self) -> tuple[Rows, int, int]:
        """Return the rows that the sink must hold, how many records are late, and how many are partly."""
        rows, late, partly, _ = self.model()
        return rows, late, partly

    def open(self) -> list[tuple[int, int, int]]:
        """Return the windows that must be open, in milliseconds since 1970, with the number of their keys."""
        *_, state = self.model()
        keys = Counter((end, start) for start, end, _ in state)
        return [(milliseconds(start), milliseconds(end), count) for (end, start), count in sorted(keys.items())]

    # --- the sink --------------------------------------------------------------------------------------------------

    def held(self, run: str | None = None) -> Rows:
        """Return the rows that the sink holds, or those of one run."""
        found = [row for row in self.sandbox.rows_of_sink() if run in (None, row["_run"])]
        return Counter(
            (_time(row["window_start"]), _time(row["window_end"]), row["k"], row["n"], row["total"]) for row in found
        )

    def assert_exact(self) -> None:
        """The sink holds the model's rows, and the account has the fate of each record."""
        rows, late, partly = self.expected()
        assert self.held() == rows
        counted = self.counted("windows", "rows", "late", "partly_late")
        assert counted == Counter({"rows": sum(rows.values()), "late": late, "partly_late": partly})
        self.assert_split(late)

    def assert_open(self) -> dict[str, Any]:
        """``sluice state`` lists the model's open windows; return what it says."""
        said = self.state()
        assert [(w["window_start"], w["window_end"], w["keys"]) for w in said["windows"]] == self.open()
        return said


class Sessions(Stream):
    """Sessions, which grow as records come."""

    def open(self) -> list[tuple[int, int, int]]:
        """Return the sessions that must be open, summed up by the hour of their end."""
        hours: dict[datetime, list[tuple[datetime, datetime]]] = defaultdict(list)
        *_, state = self.model()
        for start, end, _ in state:
            hours[end.replace(minute=0, second=0, microsecond=0)].append((start, end))
        return [
            (milliseconds(min(s for s, _ in found)), milliseconds(max(e for _, e in found)), len(found))
            for _, found in sorted(hours.items())
        ]

    def model(self) -> tuple[Rows, int, int, State]:
        """Return the rows of closed sessions, the number of late records, and the open sessions."""
        gap = length(self.window["gap"])
        late, rows = 0, Counter[Any]()
        older = now = EPOCH
        state: State = {}
        for number, records in self.batches():
            now = self.before(number, now, records)
            sessions = [(k, start, end, values) for (start, end, k), values in state.items()]
            for at, k, v in records:
                if at + gap <= older:
                    late += 1
                else:
                    sessions.append((k, at, at + gap, [v]))
            merged: list[tuple[str, datetime, datetime, list[int]]] = []
            for k, start, end, values in sorted(sessions):
                if merged and merged[-1][0] == k and start <= merged[-1][2]:
                    _, first, last, before = merged.pop()
                    merged.append((k, first, max(last, end), before + values))
                else:
                    merged.append((k, start, end, values))
            rows += rows_of({(s, e, k): values for k, s, e, values in merged if e <= now})
            state = {(s, e, k): values for k, s, e, values in merged if e > now}
            older, now = now, self.after(number, now, records)
        return rows, late, 0, state


class Updated(Stream):
    """Windows that each batch which changes them writes: the sink has also those that are open."""

    def expected(self) -> tuple[Rows, int, int]:
        rows, late, partly, state = self.model()
        return rows + rows_of(state), late, partly

    def assert_exact(self) -> None:
        """The sink holds the model's rows, each window once, and the account has the fate of each record."""
        rows, late, _ = self.expected()
        assert self.held() == rows
        assert set(rows.values()) <= {1}
        self.assert_split(late)


class Completed(Updated):
    """Windows of which each batch writes all, in place of all: none is ever closed, and no record is late."""

    def model(self) -> tuple[Rows, int, int, State]:
        """Return no row apart from those of windows that are open: all of them."""
        state: State = defaultdict(list)
        for _, records in self.batches():
            for at, k, v in records:
                for span in self.spans(at):
                    state[*span, k].append(v)
        return Counter(), 0, 0, state


@dataclass
class Held(Stream):
    """Windows whose watermark, in each run, ends where batches before the run read the slowest partition."""

    started: list[tuple[int, int]] = field(default_factory=list)
    """For each run that went on with the epoch: how many batches Spark had committed, and how many the sink had."""

    def send(self, partition: int, first: int, last: int, count: int = 6) -> None:
        """Produce records of one partition with event times between two minutes, in random order."""
        made = [(minute(self.chance.randrange(first, last)), self.chance.choice("ab"), 1) for _ in range(count)]
        places = self.sandbox.produce([(partition, b"", event(*record)) for record in made])
        self.records |= {(p, offset): record for (_, p, offset), record in zip(places, made, strict=True)}

    def run(self, name: str, **options: Any) -> Outcome:
        table = self.sandbox.table()
        known = None if table is None else table.transaction_version(app_id(self.sandbox.name, self.epoch))
        commits = self.checkpoint / "commits"
        committed = [int(f.name) for f in commits.iterdir() if f.name.isdigit()] if commits.is_dir() else []
        self.started.append((max(committed, default=-1) + 1, 0 if known is None else known + 1))
        return super().run(name, **options)

    def before(self, number: int, now: datetime, records: Sequence[Record]) -> datetime:
        """Return the watermark by which a batch closes windows: a run without records begins with the held one."""
        first = any(committed == number for committed, _ in self.started)
        held = self._limit(number) if first and not records else None
        return now if held is None else max(now, held)

    def after(self, number: int, now: datetime, records: Sequence[Record]) -> datetime:
        held = self._limit(number)
        return now if held is None else max(now, min(super().after(number, now, records), held))

    def _limit(self, number: int) -> datetime | None:
        """Return as far as the watermark may go in the run that committed a batch."""
        known = [known for committed, known in self.started if committed <= number][-1]
        latest: dict[int, datetime] = {}
        seen: dict[int, int] = {}
        for batch, places in self.places():
            for partition, offset in places if batch < known else ():
                if (record := self.records[partition, offset]) is not None:
                    latest[partition] = max(latest.get(partition, record[0]), record[0])
                    seen[partition] = self._planned_at(batch)
        idle = length(self.window["hold"]["idle_after"]) / timedelta(milliseconds=1)
        holding = [latest[p] for p, at in seen.items() if max(seen.values()) - at < idle]
        return min(holding) - length(self.window["watermark"]) if holding else None

    def _planned_at(self, batch: int) -> int:
        """Return when a batch was planned, in milliseconds since 1970."""
        metadata = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[1]
        return int(json.loads(metadata)["batchTimestampMs"])


class HeldSessions(Held, Sessions):
    """Sessions with such a watermark."""


class HeldUpdated(Held, Updated):
    """Windows with such a watermark that each batch updates."""


def stream_of(sandbox: Sandbox, window: dict[str, Any], **keys: Any) -> Stream:
    """Return the model of windows, whose pipeline file is written."""
    kinds = {"update": Updated, "complete": Completed}
    stream = (Sessions if "gap" in window else kinds.get(window.get("output", ""), Stream))(sandbox, window, **keys)
    stream.configure()
    return stream
