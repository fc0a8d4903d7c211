"""A processor over several runs: state and timers of a user's class, on flights.

Its kills are in ``test_operators.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from tests.chaos.commands import deep, drain, listed
from tests.chaos.models.planned import milliseconds
from tests.chaos.models.processor import IDLE, Feed, departure
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def test_rotations_go_on_from_run_to_run(sandbox: Sandbox) -> None:
    feed = Feed(sandbox, also=True)
    feed.configure()
    for run, part in zip(("first", "second", "third"), feed.parts(3), strict=True):
        feed.put(part, bad=run != "second")
        sandbox.run(run)
        feed.assert_exact()
    rows, left, late, dropped, now = feed.model()
    assert late
    assert dropped
    assert left
    assert any(row[3] > 2 for row in rows), "flights were chained"
    assert any(row[6] for row in rows), "delays were inherited"
    rules = Counter(row["_errors"][0]["rule"] for row in listed(sandbox, "table_quarantine"))
    assert rules == Counter({"json": 2, "event_time_missing": 2, "event_time_ahead": 2})
    assert "records were late (watermark 2013-01-0" in sandbox.cli("status", sandbox.name).stderr
    said = feed.assert_open()
    assert said["definition"] == {"python": "processors.rotations:Rotations", "by": ["tailnum"], "time": "departs"}
    tail, legs = max(left.items(), key=lambda item: len(item[1]))
    kept = feed.state("--key", f"tailnum={tail}")["rows"]
    assert [row["key"] for row in kept] == [{"tailnum": tail}] * 2
    state: dict[str, Any] = {name: value for row in kept for name, value in json.loads(row["state"]).items()}
    assert sorted(leg["departs"] for leg in state["legs"]) == [milliseconds(departure(leg)) * 1000 for leg in legs]
    ends = {milliseconds(departure(leg) + IDLE) for leg in legs}
    assert state["$timers"] == sorted(end for end in ends if end > milliseconds(now))
    assert feed.state("--history")["runs"][-1]["keys"] == len(left)
    report = deep(sandbox)
    assert report["problems"] == []
    assert any("processor" in text for text in report["unproved"])


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_timers_of_a_resting_stream_fire_once(sandbox: Sandbox, recovery: str) -> None:
    feed = Feed(sandbox, recovery)
    feed.configure(flush={"after": "1d"})
    feed.put(next(feed.parts(2)), bad=True)
    sandbox.run("first", validate=True)
    sandbox.run("not yet", validate=True)
    assert sandbox.ledger.account(sandbox.name, "not yet").get("processor", {}) == {}
    feed.assert_exact()
    left = feed.model()[1]
    assert left
    last = max(departure(leg) for legs in left.values() for leg in legs) + IDLE
    feed.configure(flush={"after": "0s"})
    sandbox.run("flushes", kill_at="closing-planned")
    sandbox.run("flushes", validate=True)
    feed.flushed = True
    feed.assert_exact()
    said = feed.state()
    assert (said["keys"], said["timers"], said["watermark"]) == (0, 0, milliseconds(last))
    assert sandbox.ledger.account(sandbox.name, "flushes")["processor"]["fired_to"] == milliseconds(last)
    verdicts = {run: sandbox.ledger.known_run(sandbox.name, run).verdict for run in ("first", "not yet", "flushes")}
    assert verdicts == {"first": "passed", "not yet": "empty", "flushes": "passed"}
    rows = feed.held()
    sandbox.run("again")
    assert sandbox.ledger.account(sandbox.name, "again").get("processor", {}) == {}
    for time in (last, last + timedelta(minutes=1)):  # late, and timely
        value = {"tailnum": "N1", "dep_time": 1, "minute": 0, "time_hour": time.isoformat()}
        sandbox.produce([(0, b"", json.dumps(value).encode())])
    sandbox.run("goes on")
    account = sandbox.account("goes on")
    assert (account["filtered"], account["written"]) == (1, 1)
    assert feed.held() == rows
    assert sandbox.ledger.account(sandbox.name, "goes on").get("processor", {})["late"] == 1
    sandbox.assert_balanced()


def test_processor_that_fails_or_was_changed_is_refused_until_it_is_mended(sandbox: Sandbox) -> None:
    failing: dict[str, Any] = {
        "python": "processing:Failing", "by": ["id"], "time": "_timestamp", "watermark": "1h",
        "schema": "id BIGINT, n INT",
    }  # fmt: skip
    sandbox.configure(processor=failing)
    drain(sandbox, 4, "first")
    assert sorted((row["id"], row["n"]) for row in listed(sandbox)) == [(n, 1) for n in range(4)]
    for processor, token in ((failing | {"by": ["name"]}, "by was ['id'] and is ['name']"), (None, "processor")):
        sandbox.configure(**({"processor": processor} if processor else {}))
        sandbox.feed(1)
        message = sandbox.run("changed", expect=41).message
        assert token in message
        assert f"sluice reset {sandbox.name} --reason" in message
    for number, (name, token) in enumerate(
        [("bad", "ValueError: «the name of 9 is bad"), ("misspelt", "id, N"), ("half", "0.5 for n")]
    ):
        sandbox.configure(processor=failing)
        sandbox.produce([(0, b"", json.dumps({"id": 9 + number, "name": name}).encode())])
        assert token in sandbox.run("fails", expect=1).message
        without = {"sql": f"SELECT * FROM source WHERE name != '{name}'"}
        sandbox.configure(processor=failing, transform=without, rows="filter")
        sandbox.run(f"without-{name}")
    assert sandbox.total("written") == 6
    sandbox.assert_balanced()
