"""Windows over several runs: whatever dies, each record is absorbed once, late, or in the quarantine.

The oracle is a model in plain Python of what Spark promises. It shares no code with Sluice: it gets the records as they
were produced, and the ranges of each batch as the checkpoint has them.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOURLY: dict[str, Any] = {
    "time": "at", "size": "1h", "by": ["k"], "aggregates": {"n": "count(*)", "total": "sum(v)"}, "watermark": "30m",
}  # fmt: skip
SLIDING = {**HOURLY, "size": "30m", "slide": "10m"}


@dataclass
class Stream:
    """What was produced: by partition the event times and values, in the order of offsets; None where it is refused."""

    sandbox: Sandbox
    window: dict[str, Any]
    records: dict[tuple[int, int], tuple[datetime, str, int] | None] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def configure(self, **keys: Any) -> None:
        """Write the pipeline file."""
        self.sandbox.configure(
            decode={"json": {"schema": "at TIMESTAMP, k STRING, v INT"}},
            window=self.window,
            quality={"max_quarantined": "100%"},
            kafka={"max_records_per_batch": 10},
            **keys,
        )

    def feed(self, first: int, last: int, count: int = 10, *, bad: bool = False) -> None:
        """Produce records with event times in random order, between two minutes."""
        values = []
        for _ in range(count):
            at = BEGIN + self.chance.randrange(first, last) * MINUTE
            values.append((at, self.chance.choice("ab"), self.chance.randrange(100)))
        made: list[tuple[int, bytes, bytes, tuple[datetime, str, int] | None]] = [
            (n % 2, b"", _json(at, k, v), (at, k, v)) for n, (at, k, v) in enumerate(values)
        ]
        if bad:  # not JSON, without an event time, and of the far future
            made += [(0, b"", b"{", None), (1, b"", _json(None, "a", 1), None), (0, b"", _json(FUTURE, "a", 1), None)]
        for (_, partition, offset), (*_, record) in zip(
            self.sandbox.produce([m[:3] for m in made]), made, strict=True
        ):  # fmt: skip
            self.records[partition, offset] = record

    # --- the oracle ------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[tuple[int, list[tuple[datetime, str, int]]]]:
        """Yield each batch that the checkpoint has, with its sound records."""
        before: dict[str, int] = {}
        folder = self.sandbox.home / "checkpoints" / self.sandbox.name / "epoch-1" / "offsets"
        for number in sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit()):
            ends = json.loads((folder / str(number)).read_text().splitlines()[2])[self.sandbox.topic]
            spans = {int(p): range(before.get(p, 0), end) for p, end in ends.items()}
            found = [self.records[p, offset] for p, span in spans.items() for offset in span]
            before = ends
            yield number, [record for record in found if record is not None]

    def expected(self) -> tuple[Counter[Any], int, int]:
        """Return the rows that the sink must hold, how many records are late, and how many are partly."""
        delay, late, partly, rows = _span(self.window["watermark"]), 0, 0, Counter[Any]()
        older = now = datetime(1970, 1, 1, tzinfo=UTC)
        state: dict[tuple[datetime, datetime, str], list[int]] = defaultdict(list)
        for _, records in self.batches():
            for at, k, v in records:
                spans = self.spans(at)
                absorbed = [span for span in spans if span[1] > older]
                late += not absorbed
                partly += 0 < len(absorbed) < len(spans)
                for span in absorbed:
                    state[*span, k].append(v)
            for key in [key for key in state if key[1] <= now]:
                values = state.pop(key)
                rows[*key, len(values), sum(values)] += 1
            older, now = now, max([now, *(at - delay for at, *_ in records)])
        return rows, late, partly

    def spans(self, at: datetime) -> list[tuple[datetime, datetime]]:
        """Return the windows of an event time."""
        size, slide = _span(self.window["size"]), _span(self.window.get("slide", self.window["size"]))
        start = at - (at - datetime(1970, 1, 1, tzinfo=UTC)) % slide
        found = []
        while start + size > at:
            found.append((start, start + size))
            start -= slide
        return found

    def held(self) -> Counter[Any]:
        """Return the rows that the sink holds."""
        rows = self.sandbox.rows()
        names = ("window_start", "window_end", "k", "n", "total")
        return Counter() if rows is None else Counter(tuple(row[n] for n in names) for row in rows.to_pylist())

    def assert_exact(self) -> None:
        """The sink holds what the model says, and the account says what became of each record."""
        rows, late, partly = self.expected()
        assert self.held() == rows
        sandbox, told = self.sandbox, Counter[str]()
        for run in sandbox.ledger.runs(sandbox.name, limit=100):
            moved = sandbox.ledger.windows(sandbox.name, run.run)
            told.update({key: moved.get(key, 0) for key in ("rows", "late", "partly_late")})
        assert told == Counter({"rows": sum(rows.values()), "late": late, "partly_late": partly})
        sound = sum(record is not None for record in self.records.values())
        split = {part: sandbox.total(part) for part in ("written", "filtered", "quarantined", "absent", "lost")}
        assert split == {
            "written": sound - late, "filtered": late, "quarantined": len(self.records) - sound, "absent": 0, "lost": 0,
        }  # fmt: skip
        assert set(sandbox.quarantine().values()) <= {1}
        assert sum(sandbox.quarantine().values()) == len(self.records) - sound
        sandbox.assert_balanced()


FUTURE = datetime(2900, 1, 1, tzinfo=UTC)


def _json(at: datetime | None, k: str, v: int) -> bytes:
    return json.dumps({"at": at.isoformat() if at else None, "k": k, "v": v}).encode()


def _span(text: str) -> timedelta:
    return timedelta(**{{"m": "minutes", "h": "hours"}[text[-1]]: int(text[:-1])})


@pytest.mark.parametrize("window", [pytest.param(HOURLY, marks=pytest.mark.long), SLIDING], ids=["tumbling", "sliding"])
def test_windows_stay_open_between_runs(sandbox: Sandbox, window: dict[str, Any]) -> None:
    stream = Stream(sandbox, window)
    stream.configure()
    stream.feed(0, 90, bad=True)
    sandbox.run("first")
    stream.assert_exact()
    stream.feed(60, 200, 14)
    sandbox.run("second")
    stream.feed(0, 240, 14, bad=True)  # some of them late
    sandbox.run("third")
    sandbox.run("idle")
    stream.assert_exact()
    rows, late, partly = stream.expected()
    assert rows, "windows were closed"
    assert late
    assert bool(partly) is ("slide" in window)


def reset_plan(sandbox: Sandbox) -> None:
    """Leave what a driver leaves that dies between Spark's commit of a batch and its plan of the one that closes."""
    folder = sandbox.home / "checkpoints" / sandbox.name / "epoch-1"
    newest = max(int(f.name) for f in (folder / "offsets").iterdir() if f.name.isdigit())
    assert not (folder / "commits" / str(newest)).exists()
    (folder / "offsets" / str(newest)).unlink()
    (folder / "offsets" / f".{newest}.crc").unlink()


POINTS = (
    "run-planned",
    "window-defined",
    "batch-started",
    "rows-staged",
    "quarantine-staged",
    "before-sink-commit",
    "sink-committed",
    "quarantine-committed",
    "batch-recorded",
    "query-ended",
)


@pytest.mark.parametrize(
    "points",
    [
        ("sink-committed",),
        pytest.param(POINTS, marks=pytest.mark.long),
        pytest.param(
            ("sink-committed:2", "batch-recorded:2", "batch-started:2", "before-sink-commit:2"), marks=pytest.mark.long
        ),
    ],
    ids=["in-the-sink", "every-point", "closing"],
)
def test_kills_neither_lose_nor_double(sandbox: Sandbox, points: tuple[str, ...]) -> None:
    stream = Stream(sandbox, HOURLY)
    stream.configure()
    for number, point in enumerate(points):
        stream.feed(number * 90, number * 90 + 100, 6, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.feed(0, len(points) * 90 + 200, 6)
    sandbox.run("last")
    stream.assert_exact()
    assert sandbox.never_committed() == set()


def test_a_batch_that_closes_windows_is_made_up(sandbox: Sandbox) -> None:
    """A driver dies after a batch with records, before Spark planned the one that closes windows."""
    stream = Stream(sandbox, HOURLY)
    stream.configure()
    stream.feed(0, 50, 4)
    stream.feed(170, 200, 4)
    sandbox.run("dies", kill_at="batch-started:2")
    reset_plan(sandbox)
    assert not stream.held()
    sandbox.run("dies again", kill_at="closing-planned")
    assert not stream.held()
    sandbox.run("mends")
    assert stream.held(), "nothing waits, and yet windows are due"
    assert sandbox.account("mends")["planned"] == 0
    assert sandbox.account("mends")["written"] == 0
    assert sandbox.ledger.windows(sandbox.name, "mends")["rows"] == sum(stream.held().values())
    stream.feed(0, 170, 8)
    sandbox.run("last")
    stream.assert_exact()
    assert stream.expected()[1], "late by the watermark that the batch made up"


def test_a_changed_window_is_refused(sandbox: Sandbox) -> None:
    stream = Stream(sandbox, HOURLY)
    stream.configure()
    stream.feed(0, 100, 4)
    sandbox.run("first")
    stream.window = {**HOURLY, "size": "2h"}
    stream.configure()
    stream.feed(0, 100, 4)
    said = sandbox.run("second", expect=41).message
    assert "size was 3600.0 and is 7200.0" in said
    assert "another name" in said
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING, v INT"}})
    assert "has no window any more" in sandbox.run("third", expect=41).message
    stream.window = {**HOURLY, "watermark": "45m"}
    stream.configure()
    sandbox.run("fourth")
    assert sandbox.account("fourth")["planned"] == 4
