"""Recorded crash states: the fixed, spread-out part that every test run resumes; ``make chaos-states`` has all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.chaos.states.recorder import record, why_not
from tests.chaos.states.tree import Tree
from tests.fixtures.runs import KeptSandbox, Sandbox

from sluice.local.kafka import Broker, Topics

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.fixture
def kept(spark: SparkSession, broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path) -> KeptSandbox:
    """A pipeline whose runs share one session."""
    return KeptSandbox(tmp_path / "kept", broker, topics, topic(2, retention_ms=-1), spark=spark)


def test_what_was_recorded_played_back_is_what_the_run_left(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.feed(12, bad_every=5)
    env = sandbox.env()
    recording = record(sandbox.home, sandbox.submission("r", env), env, tmp_path)
    sandbox.assert_exact()
    assert recording.after().contents() == Tree.read(sandbox.home).contents()


def test_a_driver_that_died_while_spark_wrote_its_first_plan_leaves_nothing_in_the_way(kept: KeptSandbox) -> None:
    """Spark's unfinished file in ``offsets`` would keep Spark itself from ever beginning."""
    kept.feed(4)
    offsets = kept.home / "checkpoints" / kept.name / "epoch-1" / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.7f8c.tmp", "..0.7f8c.tmp.crc"):
        (offsets / name).write_bytes(b"v1\n{")
    kept.run("r")
    kept.assert_exact()
    assert sorted(f.name for f in offsets.iterdir()) == [".0.crc", "0"]
