"""Duplicates over several runs: whatever dies, each key is in the sink once, and each other record is told of.

The oracle is a model in plain Python of what Spark promises. It shares no code with Sluice: it gets the records as they
were produced, and the ranges of each batch as the checkpoint has them. Which of a batch's duplicates comes first is up
to Spark's shuffle, so the model takes that one from the sink, and checks that it is one of them.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.chaos.test_reset import reset
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FUTURE = datetime(2900, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WITHIN = timedelta(hours=1)
DEDUPE: dict[str, Any] = {"keys": ["id"], "time": "at", "within": "1h"}

Made = tuple[datetime, int] | None
"""Event time and id of a sound record; None if it is refused."""


@dataclass
class Stream:
    """What was produced, by place."""

    sandbox: Sandbox
    records: dict[tuple[int, int], Made] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    batch: int = 10
    recovery: str = "replay"
    epoch: int = 1
    begins: dict[str, int] = field(default_factory=dict)
    earlier: list[dict[tuple[int, int], tuple[datetime, int]]] = field(default_factory=list)

    def configure(self, dedupe: dict[str, Any] | None = DEDUPE, **keys: Any) -> None:
        """Write the pipeline file."""
        self.sandbox.configure(
            decode={"json": {"schema": "at TIMESTAMP, id INT"}},
            quality={"max_quarantined": "100%"},
            kafka={"max_records_per_batch": self.batch},
            recovery=self.recovery,
            **({"dedupe": dedupe} if dedupe else {}),
            **keys,
        )

    def feed(self, first: int, last: int, count: int = 10, *, bad: bool = False, ids: int = 6) -> None:
        """Produce records of few ids with event times between two minutes, in random order and on both partitions."""
        made: list[tuple[int, bytes, bytes, Made]] = []
        for n in range(count):
            record = BEGIN + self.chance.randrange(first, last) * MINUTE, self.chance.randrange(ids)
            made.append((n % 2, b"", _json(*record), record))
        if bad:  # not JSON, without an event time, without an id, and of the far future
            refused = [b"{", _json(None, 1), _json(BEGIN + first * MINUTE, None), _json(FUTURE, 1)]
            made += [(n % 2, b"", value, None) for n, value in enumerate(refused)]
        self.put(made)

    def put(self, made: Sequence[tuple[int, bytes, bytes, Made]]) -> None:
        """Produce records."""
        for (_, partition, offset), (*_, record) in zip(
            self.sandbox.produce([m[:3] for m in made]), made, strict=True
        ):  # fmt: skip
            self.records[partition, offset] = record

    def batches(self) -> Iterator[dict[tuple[int, int], tuple[datetime, int]]]:
        """Yield the sound records of each batch that the checkpoints have."""
        yield from self.earlier
        before = self.begins
        epoch = f"epoch-{self.epoch}-applied" if self.recovery == "wal" else f"epoch-{self.epoch}"
        folder = self.sandbox.home / "checkpoints" / self.sandbox.name / epoch / "offsets"
        for number in sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit()):
            ends = json.loads((folder / str(number)).read_text().splitlines()[2])[self.sandbox.topic]
            places = [(int(p), offset) for p, end in ends.items() for offset in range(before.get(p, 0), end)]
            before = ends
            yield {place: record for place in places if (record := self.records[place]) is not None}

    def begin_again(self) -> None:
        """Open another epoch, which goes on with the keys."""
        self.earlier = list(self.batches())
        self.begins = {str(p): end for p, end in self.sandbox.topics.ends(self.sandbox.topic).items()}
        self.epoch += 1
        reset(self.sandbox, "--rebuild-state")

    def held(self) -> dict[tuple[int, int], tuple[datetime, int]]:
        """Return the rows that the sink holds, by place; each is as it was produced."""
        rows = self.sandbox.rows()
        found = [] if rows is None else rows.to_pylist()
        places = {(row["_partition"], row["_offset"]): (row["at"], row["id"]) for row in found}
        assert len(places) == len(found), "no record is there twice"
        assert {row["_topic"] for row in found} <= {self.sandbox.topic}
        assert all(self.records[place] == row for place, row in places.items())
        return places

    def model(self) -> tuple[set[tuple[int, int]], int, int, dict[int, datetime]]:
        """Return the places that the sink must hold, the late ones' and duplicates' number, and the keys remembered."""
        held, due = self.held(), set[tuple[int, int]]()
        late = doubled = 0
        older = now = EPOCH
        remembered: dict[int, datetime] = {}
        for records in self.batches():
            timely = {place: record for place, record in records.items() if record[0] > older}
            late += len(records) - len(timely)
            for key in {record[1] for record in timely.values()}:
                candidates = [place for place, record in timely.items() if record[1] == key]
                doubled += len(candidates)
                if key not in remembered:
                    (chosen,) = [place for place in candidates if place in held]
                    due.add(chosen)
                    remembered[key] = self.records[chosen][0] + WITHIN  # type: ignore[index]
                    doubled -= 1
            remembered = {key: until for key, until in remembered.items() if until > now}
            older, now = now, max([now, *(at - WITHIN for at, _ in records.values())])
        return due, late, doubled, remembered

    def assert_exact(self) -> dict[str, int]:
        """The sink holds what the model says, and the account says what became of each record; return its parts."""
        due, late, doubled, _ = self.model()
        assert set(self.held()) == due
        sandbox, told = self.sandbox, Counter[str]()
        for run in sandbox.ledger.runs(sandbox.name, limit=1000):
            dropped = sandbox.ledger.dedupe(sandbox.name, run.run)
            told.update({key: dropped.get(key, 0) for key in ("duplicate", "late")})
        assert told == Counter({"duplicate": doubled, "late": late})
        bad = sum(record is None for record in self.records.values())
        split = {part: sandbox.total(part) for part in ("written", "filtered", "quarantined", "absent", "lost")}
        assert split == {
            "written": len(due), "filtered": late + doubled, "quarantined": bad, "absent": 0, "lost": 0,
        }  # fmt: skip
        assert set(sandbox.quarantine().values()) <= {1}
        assert sum(sandbox.quarantine().values()) == bad
        sandbox.assert_balanced()
        return {"late": late, "duplicate": doubled}


def _json(at: datetime | None, key: int | None) -> bytes:
    return json.dumps({"at": at.isoformat() if at else None, "id": key}).encode()


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def test_keys_are_remembered_between_runs(sandbox: Sandbox) -> None:
    stream = Stream(sandbox)
    stream.configure()
    ancient = datetime(1969, 12, 31, 12, tzinfo=UTC)
    stream.put([(0, b"", _json(ancient, 1), (ancient, 1))])
    stream.feed(0, 90, 11, bad=True)
    sandbox.run("first")
    stream.assert_exact()
    stream.feed(60, 200, 14)
    sandbox.run("second")
    stream.feed(0, 240, 14, bad=True)  # some of them late
    sandbox.run("third")
    sandbox.run("idle")
    assert all(stream.assert_exact().values())
    rules = Counter(row["_errors"][0]["rule"] for row in sandbox.rows("table_quarantine").to_pylist())  # type: ignore[union-attr]
    assert rules == Counter(
        {"json": 2, "event_time_missing": 2, "dedupe_key_missing": 2, "event_time_ahead": 2}
    )  # fmt: skip
    assert "duplicates were filtered" in sandbox.cli("status", sandbox.name).stderr
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    remembered = stream.model()[-1]
    assert remembered
    assert told["keys"] == len(remembered)
    assert told["first_forgotten_at"] == _ms(min(remembered.values()))
    assert told["last_forgotten_at"] == _ms(max(remembered.values()))
    assert told["definition"] == {"keys": ["id"], "time": "at"}
    one, until = next(iter(remembered.items()))
    (kept,) = json.loads(sandbox.cli("state", str(sandbox.file), "--key", f"id={one}", "--json").stdout)["rows"]
    assert kept["key"] == {"id": str(one)}
    assert json.loads(kept["state"]) == {"expiresAtMicros": _ms(until) * 1000}
    deep = json.loads(sandbox.cli("audit", str(sandbox.file), "--deep", "--json").stdout)
    assert deep["problems"] == []


POINTS = (
    "run-planned",
    "window-defined",
    "batch-started",
    "rows-staged",
    "state-dropped",
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
        pytest.param(("sink-committed", "batch-recorded:2"), marks=pytest.mark.long),
        pytest.param(POINTS, marks=pytest.mark.long),
        pytest.param(
            ("sink-committed:2", "batch-recorded:2", "batch-started:2", "before-sink-commit:2"), marks=pytest.mark.long
        ),
    ],
    ids=["in-the-sink", "every-point", "forgetting"],
)
def test_kills_neither_lose_nor_double(sandbox: Sandbox, points: tuple[str, ...]) -> None:
    stream = Stream(sandbox)
    stream.configure()
    for number, point in enumerate(points):
        stream.feed(number * 30, number * 30 + 60, 6, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.feed(0, len(points) * 30 + 90, 6)
    sandbox.run("last")
    assert stream.assert_exact()["duplicate"]
    assert sandbox.never_committed() == set()


@pytest.mark.long
def test_the_state_of_a_batch_in_the_sink_is_that_of_its_rows_there(sandbox: Sandbox) -> None:
    """Another attempt may see other duplicates first: then it would forget their keys at another time."""
    stream = Stream(sandbox, batch=100)
    stream.configure()
    early, later = BEGIN, BEGIN + 50 * MINUTE
    stream.put([(n % 2, b"", _json(at, 1), (at, 1)) for n, at in enumerate([early, later, early, later])])
    sandbox.run("dies", kill_at="sink-committed")
    ((at, _),) = stream.held().values()
    place, record = next((place, record) for place, record in stream.records.items() if record and record[0] != at)
    table = sandbox.table()
    assert table is not None
    # as if that attempt had taken another one of them
    table.update(new_values={"_partition": place[0], "_offset": place[1], "at": record[0]})
    sandbox.run("goes on")
    stream.assert_exact()
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert told["first_forgotten_at"] == _ms(record[0] + WITHIN)


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_keys_are_remembered_by_the_next_epoch(sandbox: Sandbox, recovery: str) -> None:
    stream = Stream(sandbox, recovery=recovery)
    stream.configure()
    stream.feed(0, 120, 20, bad=True, ids=12)
    sandbox.run("first")
    assert stream.model()[-1]
    stream.begin_again()
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    stream.feed(60, 150, 14, bad=True, ids=12)
    for point in ("records-gathered", "sink-committed", "state-rebuilt"):
        sandbox.run("second", kill_at=point)
    sandbox.run("second")
    before = stream.assert_exact()
    assert before["duplicate"]
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    remembered = stream.model()[-1]
    assert remembered
    assert told["keys"] == len(remembered)
    assert told["last_forgotten_at"] == _ms(max(remembered.values()))
    stream.feed(0, 240, 14, ids=12)
    sandbox.run("third")
    assert stream.assert_exact()["late"]
    deep = json.loads(sandbox.cli("audit", str(sandbox.file), "--deep", "--json").stdout)
    assert deep["problems"] == []


def test_a_changed_dedupe_is_refused(sandbox: Sandbox) -> None:
    stream = Stream(sandbox)
    stream.configure()
    stream.feed(0, 100, 4)
    sandbox.run("first")
    stream.configure({**DEDUPE, "keys": ["id", "at"]})
    stream.feed(0, 100, 4)
    said = sandbox.run("second", expect=41).message
    assert "keys was ['id'] and is ['id', 'at']" in said
    assert f"sluice reset {sandbox.name} --reason" in said
    stream.configure(None)
    assert "has no dedupe any more" in sandbox.run("third", expect=41).message
    # either would write duplicates, and the keys of what it writes would not be remembered
    assert "has no dedupe any more" in sandbox.run("redrive", redriven="quarantined", expect=41).message
    past = ("2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
    assert "has no dedupe any more" in sandbox.run("interval", interval=past, expect=41).message
    window = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "1h"}
    stream.configure(None, window=window)
    assert "has window instead" in sandbox.run("fourth", expect=41).message
    stream.configure({**DEDUPE, "ahead": "2d"})
    sandbox.run("fifth")
    stream.assert_exact()


@pytest.mark.long
def test_the_state_of_an_attempt_that_came_to_nothing_is_gone(sandbox: Sandbox) -> None:
    stream = Stream(sandbox)
    stream.configure()
    stream.feed(0, 10, 4, ids=1)
    sandbox.run("dies", kill_at="before-sink-commit")
    stream.configure(transform={"sql": "SELECT * FROM source WHERE id > 5"}, rows="filter")
    sandbox.run("dies again", kill_at="state-dropped")
    sandbox.run("drops all")
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert told["keys"] == 0
    stream.configure()
    stream.feed(0, 10, 2, ids=1)
    sandbox.run("last")
    assert len(stream.held()) == 1


LANDING = ("segments-staged", "before-seal", "sealed", "seal-recorded")
"""What comes before, by way of the write-ahead log."""


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [
        ("sink-committed",),
        ("run-planned", "window-defined", *LANDING, *POINTS[2:]),
        ("sealed", "batch-recorded:2", "sink-committed:2", "batch-started:2", "before-sink-commit:2"),
    ],
    ids=["in-the-sink", "every-point", "forgetting"],
)
def test_by_way_of_the_log_kills_neither_lose_nor_double(sandbox: Sandbox, points: tuple[str, ...]) -> None:
    stream = Stream(sandbox, recovery="wal")
    stream.configure()
    for number, point in enumerate(points):
        stream.feed(number * 30, number * 30 + 60, 6, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.feed(0, len(points) * 30 + 90, 6)
    sandbox.run("last")
    assert stream.assert_exact()["duplicate"]
    assert sandbox.never_committed() == set()
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert told["keys"] == len(stream.model()[-1])
    assert told["definition"] == {"keys": ["id"], "time": "at"}
    deep = json.loads(sandbox.cli("audit", str(sandbox.file), "--deep", "--json").stdout)
    assert deep["problems"] == []
