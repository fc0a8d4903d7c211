"""``hold``: the slowest partition decides when records are late, until it is idle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.chaos.models import dedupe
from tests.chaos.models.planned import milliseconds, minute
from tests.chaos.models.processor import Feed, flights
from tests.chaos.models.windows import HOURLY, PANES, SESSIONS, Held, HeldSessions, HeldUpdated
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

DAY = {"hold": {"idle_after": "1d"}}


@pytest.mark.parametrize(
    ("kind", "window", "recovery", "points"),
    [
        (Held, HOURLY, "replay", ("before-sink-commit", "sink-committed", "batch-recorded:2")),
        (Held, PANES, "replay", ("sink-committed", "query-ended")),
        (HeldSessions, SESSIONS, "replay", ("sink-committed:2",)),
        (HeldUpdated, {**HOURLY, "output": "update"}, "replay", ("sink-committed",)),
        (Held, HOURLY, "wal", ("sealed", "sink-committed")),
    ],
    ids=["tumbling", "panes", "sessions", "update", "wal"],
)
def test_slowest_partition_holds_the_watermark(
    sandbox: Sandbox, kind: type[Held], window: dict[str, Any], recovery: str, points: Sequence[str]
) -> None:
    stream = kind(sandbox, {**window, **DAY}, recovery=recovery)
    stream.configure()
    held_by: dict[str, Any] = {}
    for n in range(3):  # one goes on for five hours while the other does for one
        stream.send(0, 300 * n, 300 * n + 300, 12)
        stream.send(1, 60 * n, 60 * n + 60, 12)
        for point in points if n == 1 else ():
            stream.run(f"run-{n}", kill_at=point)
        stream.run(f"run-{n}")
        if n == 1:
            held_by = stream.state()["held_by"]
    stream.assert_exact()
    written = stream.held()
    stream.run("idle", kill_at="closing-planned")
    stream.run("idle")
    stream.assert_exact()
    assert written != stream.held() or "output" in window, "the records of the last run move the watermark now"
    assert (held_by["topic"], held_by["partition"]) == (sandbox.topic, 1)
    assert held_by["latest"] < milliseconds(minute(120))
    rows, late, _ = stream.expected()
    assert rows, "windows were closed"
    assert not late, "no partition is behind itself by more than the watermark"


def test_idle_partition_holds_no_watermark(sandbox: Sandbox) -> None:
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
    assert before < stream.held(), "the records of the last run move the watermark now"
    stream.assert_exact()
    assert stream.expected()[0], "the one that goes on closed windows"
    stream.send(1, 60, 120)
    stream.run("back")
    stream.assert_exact()
    assert stream.expected()[1], "it comes back behind the watermark"


@pytest.mark.parametrize("hold", [True, False])
def test_dedupe_keeps_the_records_of_slow_partitions(sandbox: Sandbox, hold: bool) -> None:
    stream = dedupe.Stream(sandbox, batch=100)
    stream.configure({**dedupe.DEDUPE, **(DAY if hold else {})})
    for n in range(3):
        made = [
            (p, minute(step * n + late), 100 * n + 10 * p + late)
            for p, step in ((0, 300), (1, 60))
            for late in range(5)
        ]
        stream.put([(p, b"", dedupe.event(at, i), (at, i)) for p, at, i in made])
        sandbox.run(f"run-{n}")
    dropped = [sandbox.ledger.runs.account(sandbox.name, f"run-{n}").get("dedupe", {}) for n in range(3)]
    assert [each.get("late", 0) for each in dropped] == ([0, 0, 0] if hold else [0, 0, 5])
    counted = sum(each.get("late", 0) + each.get("duplicate", 0) for each in dropped)
    assert sum(sandbox.sink().values()) == 30 - counted


@pytest.mark.parametrize("hold", [True, False])
def test_processor_gets_the_records_of_slow_partitions(sandbox: Sandbox, hold: bool) -> None:
    feed = Feed(sandbox)
    feed.configure(**(DAY if hold else {}))
    sound = [flight for flight in flights(6, 4) if flight["dep_time"] is not None]
    fast, slow = sound[::2], sound[1::2]
    third = -(-len(slow) // 3)
    for n in range(3):  # one partition is read to its end by the first run
        part = [(1, flight) for flight in slow[n * third : (n + 1) * third]] + [(0, f) for f in fast if n == 0]
        sandbox.produce([(partition, b"", json.dumps(flight).encode()) for partition, flight in part])
        sandbox.run(f"run-{n}")
    done = [sandbox.ledger.runs.account(sandbox.name, f"run-{n}").get("processor", {}) for n in range(3)]
    assert sum(each["rows"] for each in done), "timers fired"
    assert [bool(each["late"]) for each in done] == ([False] * 3 if hold else [False, True, True])
    sandbox.assert_balanced()
