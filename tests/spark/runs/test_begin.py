"""Where a first run begins, by what the pipeline file says; the next one goes on behind it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox, good

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NOON = 1_772_366_400_000
"""2026-03-01T12:00Z, in milliseconds."""


@pytest.mark.parametrize(("by", "engine"), [("time", "auto"), ("offsets", "spark")])
def test_first_run_begins_where_the_file_says_and_the_next_one_behind_it(
    sandbox: Sandbox, by: str, engine: str
) -> None:
    noon = datetime.fromtimestamp(NOON / 1000, UTC).isoformat()
    begin: dict[str, Any] = {"by_time": noon} if by == "time" else {sandbox.topic: {1: 3}}
    sandbox.configure(kafka={"starting_offsets": begin}, engine=engine)
    times = [NOON - 2, NOON - 1, NOON, NOON + 1]
    sandbox.produce([(0, None, good(n), at) for n, at in enumerate(times)])
    sandbox.produce([(1, None, good(n), NOON - 9) for n in range(4)])
    sandbox.run("first")
    wanted = {(0, 2), (0, 3)} if by == "time" else {(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)}
    assert {(p, o) for _, p, o in sandbox.sink()} == wanted
    sandbox.produce([(1, None, good(9), NOON - 9)])
    sandbox.run("second")
    assert {(p, o) for _, p, o in sandbox.sink()} == wanted | {(1, 4)}
    assert sandbox.account("second")["written"] == 1
    assert json.loads(sandbox.cli("audit", sandbox.name, "--json").stdout)["balanced"]
