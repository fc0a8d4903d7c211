"""Partitions at different event times: with ``hold`` the slowest one says what is late, until it is idle.

The oracle is that of the other tests of windows, with another watermark: in each run it ends at what batches before the
run read of the slowest partition. Which batches these were, and when, it takes from the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.test_dedupe import DEDUPE
from tests.chaos.test_dedupe import Stream as Deduped
from tests.chaos.test_processor import Feed, flights
from tests.chaos.test_windows import BEGIN, HOURLY, MINUTE, PANES, SESSIONS, Sessions, Stream, Updated
from tests.fixtures.runs import Sandbox

from sluice.delta.names import app_id
from sluice.fields import duration

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

DAY = {"hold": {"idle_after": "1d"}}


@dataclass
class Held(Stream):
    """Records whose partitions are at different event times, and the runs that read them."""

    started: list[tuple[int, int]] = field(default_factory=list)
    """Of each run that went on with the epoch: how many batches Spark had committed, and how many the sink had."""

    def send(self, partition: int, first: int, last: int, count: int = 6) -> None:
        """Produce records of one partition with event times between two minutes, in random order."""
        made = [
            (BEGIN + self.chance.randrange(first, last) * MINUTE, self.chance.choice("ab"), 1) for _ in range(count)
        ]
        values = [json.dumps({"at": at.isoformat(), "k": k, "v": v}).encode() for at, k, v in made]
        places = self.sandbox.produce([(partition, b"", value) for value in values])
        self.records |= {(p, offset): record for (_, p, offset), record in zip(places, made, strict=True)}

    def run(self, name: str, *, kill_at: str | None = None) -> None:
        """Run, and note from where."""
        table = self.sandbox.table()
        known = None if table is None else table.transaction_version(app_id(self.sandbox.name, self.epoch))
        commits = self._folder / "commits"
        committed = [int(f.name) for f in commits.iterdir() if f.name.isdigit()] if commits.is_dir() else []
        self.started.append((max(committed, default=-1) + 1, 0 if known is None else known + 1))
        self.sandbox.run(name, kill_at=kill_at)

    def before(self, number: int, now: datetime, records: Sequence[tuple[datetime, str, int]]) -> datetime:
        """Return the watermark by which a batch closes windows: a run without records begins with what is held."""
        first = any(committed == number for committed, _ in self.started)
        held = self._limit(number) if first and not records else None
        return now if held is None else max(now, held)

    def after(self, number: int, now: datetime, records: Sequence[tuple[datetime, str, int]]) -> datetime:
        """Return the watermark after a batch: that of its run does not pass the slowest partition."""
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
                    seen[partition] = self._planned(batch)
        idle = duration(self.window["hold"]["idle_after"]) / timedelta(milliseconds=1)
        holding = [latest[p] for p, at in seen.items() if max(seen.values()) - at < idle]
        return min(holding) - duration(self.window["watermark"]) if holding else None

    def _planned(self, batch: int) -> int:
        """Return when a batch was planned, in milliseconds since 1970."""
        metadata = (self._folder / "offsets" / str(batch)).read_text().splitlines()[1]
        return int(json.loads(metadata)["batchTimestampMs"])

    @property
    def _folder(self) -> Path:
        epoch = f"epoch-{self.epoch}-applied" if self.recovery == "wal" else f"epoch-{self.epoch}"
        return self.sandbox.home / "checkpoints" / self.sandbox.name / epoch


class HeldSessions(Held, Sessions):
    """The same of sessions."""


class HeldUpdated(Held, Updated):
    """The same where each batch writes what it changes."""


@pytest.mark.parametrize(
    ("kind", "window", "recovery", "points"),
    [
        pytest.param(Held, HOURLY, "replay", ("sink-committed",), marks=pytest.mark.long),
        pytest.param(Held, HOURLY, "replay", ("before-sink-commit", "batch-recorded:2"), marks=pytest.mark.long),
        pytest.param(Held, PANES, "replay", ("sink-committed", "query-ended"), marks=pytest.mark.long),
        pytest.param(HeldSessions, SESSIONS, "replay", ("sink-committed:2",), marks=pytest.mark.long),
        pytest.param(
            HeldUpdated, {**HOURLY, "output": "update"}, "replay", ("sink-committed",), marks=pytest.mark.long
        ),
        pytest.param(Held, HOURLY, "wal", ("sealed", "sink-committed"), marks=pytest.mark.long),
    ],
    ids=["tumbling", "tumbling-more", "panes", "sessions", "update", "wal"],
)
def test_the_slowest_partition_holds_the_watermark(
    sandbox: Sandbox, kind: type[Held], window: dict[str, Any], recovery: str, points: Sequence[str]
) -> None:
    stream = kind(sandbox, {**window, **DAY}, recovery=recovery)
    stream.configure()
    told: dict[str, Any] = {}
    for n in range(3):  # one goes on for five hours while the other does for one
        stream.send(0, 300 * n, 300 * n + 300, 12)
        stream.send(1, 60 * n, 60 * n + 60, 12)
        for point in points if n == 1 else ():
            stream.run(f"run-{n}", kill_at=point)
        stream.run(f"run-{n}")
        if n == 1:
            told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)["held_by"]
    stream.assert_exact()
    written = stream.held()
    stream.run("idle", kill_at="closing-planned")
    stream.run("idle")
    stream.assert_exact()
    assert written != stream.held() or "output" in window, "what the last run has read moves the watermark now"
    assert (told["topic"], told["partition"]) == (sandbox.topic, 1)
    assert told["latest"] < (BEGIN + 120 * MINUTE).timestamp() * 1000
    rows, late, _ = stream.expected()
    assert rows, "windows were closed"
    assert not late, "no partition is behind itself by more than the watermark"


def test_an_idle_partition_holds_nothing(sandbox: Sandbox) -> None:
    stream = Held(sandbox, {**HOURLY, "hold": {"idle_after": "1s"}})
    stream.configure()
    stream.send(0, 0, 240, 12)
    stream.send(1, 0, 60)
    stream.run("both")
    stream.assert_exact()
    assert not stream.held(), "nothing is known of any partition yet"
    for n in range(1, 3):
        stream.send(0, 300 * n, 300 * n + 300)
        stream.run(f"one-{n}")
    before = stream.held()
    stream.run("no-records")
    assert before < stream.held(), "what the last run has read moves the watermark now"
    stream.assert_exact()
    rows, _, _ = stream.expected()
    assert rows, "the one that goes on closed windows"
    stream.send(1, 60, 120)
    stream.run("back")
    stream.assert_exact()
    assert stream.expected()[1], "it comes back behind the watermark"


@pytest.mark.long
@pytest.mark.parametrize("hold", [True, False])
def test_dedupe_keeps_the_records_of_slow_partitions(sandbox: Sandbox, hold: bool) -> None:
    stream = Deduped(sandbox, batch=100)
    stream.configure({**DEDUPE, **(DAY if hold else {})})
    for n in range(3):
        made = [
            (p, BEGIN + (step * n + minute) * MINUTE, 100 * n + 10 * p + minute)
            for p, step in ((0, 300), (1, 60))
            for minute in range(5)
        ]
        stream.put([(p, b"", json.dumps({"at": at.isoformat(), "id": i}).encode(), (at, i)) for p, at, i in made])
        sandbox.run(f"run-{n}")
    told = [sandbox.ledger.dedupe(sandbox.name, f"run-{n}") for n in range(3)]
    assert [each.get("late", 0) for each in told] == ([0, 0, 0] if hold else [0, 0, 5])
    assert sum(sandbox.sink().values()) == 30 - sum(each.get("late", 0) + each.get("duplicate", 0) for each in told)


@pytest.mark.long
@pytest.mark.parametrize("hold", [True, False])
def test_a_processor_gets_the_records_of_slow_partitions(sandbox: Sandbox, hold: bool) -> None:
    feed = Feed(sandbox)
    feed.configure(**(DAY if hold else {}))
    sound = [flight for flight in flights(6, 4) if flight["dep_time"] is not None]
    fast, slow = sound[::2], sound[1::2]
    third = -(-len(slow) // 3)
    for n in range(3):  # one partition is read to its end by the first run
        part = [(1, flight) for flight in slow[n * third : (n + 1) * third]] + [
            (0, flight) for flight in fast if n == 0
        ]
        sandbox.produce([(partition, b"", json.dumps(flight).encode()) for partition, flight in part])
        sandbox.run(f"run-{n}")
    told = [sandbox.ledger.processed(sandbox.name, f"run-{n}") for n in range(3)]
    assert sum(each["rows"] for each in told), "timers fired"
    assert [bool(each["late"]) for each in told] == ([False] * 3 if hold else [False, True, True])
    sandbox.assert_balanced()
