"""Recorded crash states: the fixed, spread-out part that every test run resumes; ``make chaos-states`` has all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.states.recorder import record, why_not
from tests.chaos.states.tree import Tree
from tests.fixtures.runs import Sandbox

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def test_what_was_recorded_played_back_is_what_the_run_left(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.feed(12, bad_every=5)
    env = sandbox.env()
    recording = record(sandbox.home, sandbox.submission("r", env), env, tmp_path)
    sandbox.assert_exact()
    assert recording.after().contents() == Tree.read(sandbox.home).contents()
