"""A processor over several runs: state and timers of a user's class, on flights.

Its kills are in ``test_operators.py``.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from tests.chaos.commands import deep, drain, listed
from tests.chaos.models.planned import milliseconds
from tests.chaos.models.processor import IDLE, Feed, departure
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def test_state_of_a_key_has_what_the_class_keeps_and_its_timers(sandbox: Sandbox) -> None:
    feed = Feed(sandbox, also=True)
    feed.configure()
    feed.put(next(feed.parts(3)), bad=True)
    sandbox.run("first")
    _, left, _, _, now = feed.model()
    said = feed.assert_open()
    assert said["definition"] == {"python": "processors.rotations:Rotations", "by": ["tailnum"], "time": "departs"}
    tail, legs = max(left.items(), key=lambda item: len(item[1]))
    kept = feed.state("--key", f"tailnum={tail}")["rows"]
    assert [row["key"] for row in kept] == [{"tailnum": tail}] * 2
    state: dict[str, Any] = {name: value for row in kept for name, value in json.loads(row["state"]).items()}
    assert sorted(leg["departs"] for leg in state["legs"]) == [milliseconds(departure(leg)) * 1000 for leg in legs]
    ends = {milliseconds(departure(leg) + IDLE) for leg in legs}
    assert state["$timers"] == sorted(end for end in ends if end > milliseconds(now))
    assert any("processor" in text for text in deep(sandbox)["unproved"])


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_timers_of_a_resting_stream_fire_once(sandbox: Sandbox, recovery: str) -> None:
    feed = Feed(sandbox, recovery)
    feed.configure(flush={"after": "1d"})
    feed.put(next(feed.parts(2)), bad=True)
    sandbox.run("first", validate=True)
    sandbox.run("not yet", validate=True)
    feed.assert_exact()
    left = feed.model()[1]
    last = max(departure(leg) for legs in left.values() for leg in legs) + IDLE
    feed.configure(flush={"after": "0s"})
    sandbox.run("flushes", kill_at="closing-planned")
    sandbox.run("flushes", validate=True)
    feed.flushed = True
    feed.assert_exact()
    said = feed.state()
    assert (said["keys"], said["timers"], said["watermark"]) == (0, 0, milliseconds(last))
    assert sandbox.ledger.runs.account(sandbox.name, "flushes")["processor"]["fired_to"] == milliseconds(last)
    verdicts = {run: sandbox.ledger.runs.known(sandbox.name, run).verdict for run in ("first", "not yet", "flushes")}
    assert verdicts == {"first": "passed", "not yet": "empty", "flushes": "passed"}
    rows = feed.held()
    for time in (last, last + timedelta(minutes=1)):  # late, and timely
        value = {"tailnum": "N1", "dep_time": 1, "minute": 0, "time_hour": time.isoformat()}
        sandbox.produce([(0, b"", json.dumps(value).encode())])
    sandbox.run("goes on")
    account = sandbox.account("goes on")
    assert (account["filtered"], account["written"]) == (1, 1)
    assert feed.held() == rows
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
        assert f"sluice reset {sandbox.file} --reason" in message
    sandbox.configure(processor=failing)
    sandbox.produce([(0, b"", b'{"id": 9, "name": "bad"}')])
    assert "ValueError: «the name of 9 is bad" in sandbox.run("fails", expect=1).message
    sandbox.configure(processor=failing, transform={"sql": "SELECT * FROM source WHERE name != 'bad'"}, rows="filter")
    sandbox.run("without")
    assert sandbox.total("written") == 6
    sandbox.assert_balanced()
