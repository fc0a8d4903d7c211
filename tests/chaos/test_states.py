"""Recorded crash states: ``make test`` resumes a few of one scenario; ``make chaos-states`` has all."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.chaos.states.boxes import Box
from tests.chaos.states.catalog import SCENARIOS
from tests.chaos.states.likeness import likeness
from tests.chaos.states.moments import DEATH, POWER, moments
from tests.chaos.states.progress import spread
from tests.chaos.states.recorder import why_not
from tests.chaos.states.resumer import Recorded
from tests.chaos.states.scenarios import RUN
from tests.chaos.states.stateful import STATEFUL
from tests.chaos.states.steps import BEGIN, BETWEEN, UnknownStepError, kinds, unguarded
from tests.chaos.states.tree import Operation, Tree

from sluice.faults import POINTS
from sluice.local.kafka import Broker, Topics
from sluice.shipped import CHECKOUT

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

SAMPLE = {"replay-many": 8, "wal-many": 4}
"""How many states of which scenarios are resumed here."""

KILLS = {"replay-many": "sink-committed", "wal-many": "sealed"}
"""Where drivers really die; behind ``sealed`` landing and applying go on side by side, in an order of their own."""


@pytest.fixture
def kept(spark: SparkSession, broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path) -> Box:
    """A pipeline whose runs share one session."""
    return Box(tmp_path / "kept", broker, topics, topic(2, retention_ms=-1), spark=spark)


@pytest.fixture(scope="module", params=[pytest.param("replay-many", marks=pytest.mark.long), "wal-many"])
def recorded(
    request: pytest.FixtureRequest, spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    """A recorded scenario, which the tests share: each puts back what it needs."""
    topics, folder = Topics(broker.bootstrap), tmp_path_factory.mktemp("states")
    topics.create(folder.name, 2, {"retention.ms": -1})
    box = Box(folder / "home", broker, topics, folder.name, spark=spark)
    yield Recorded.make(SCENARIOS[request.param], box, folder)
    topics.delete(folder.name)


def test_recorded_states_go_on_to_the_same_rows(recorded: Recorded, summary: Callable[[str], None]) -> None:
    states = [m for m in moments(recorded.recording) if m.kind == DEATH]
    began = time.monotonic()
    chosen = spread(states, SAMPLE[recorded.scenario.name])
    resumed = [(moment, recorded.resume(moment).found) for moment in chosen]
    seconds = (time.monotonic() - began) / len(chosen)
    summary(f"{recorded.scenario.name:13} {len(chosen)} of {len(states)} recorded states, {seconds:.1f} s each")
    assert {f"{m.number} {m.what}": f.problems for m, f in resumed if f.problems} == {}


SEEN = {
    "kafka, topics": "replay-many",
    "kafka, pattern": "pattern",
    "kafka, clusters": "clusters",
    "file, json, csv, text": "file-json",
    "file, parquet": "file-parquet",
    "file, avro": "file-avro",
    "jdbc, by a time": "jdbc-time",
    "jdbc, by a number": "jdbc",
    "queue, Redis Streams": "redis",
    "queue, NATS JetStream": "nats",
    "rate": "rate",
    "socket": "socket",
    "delta": "replay-many",
    "delta, upsert": "delta-upsert",
    "iceberg": "iceberg",
    "files": "files",
    "postgres": "postgres",
    "postgres, upsert": "postgres-upsert",
    "kafka": "kafka",
    "foreach": "foreach",
    "console": "console",
}
"""The scenario of each source and each sink, by its row in docs/sources-and-sinks.md."""


def test_sources_and_sinks_of_the_docs_have_scenarios() -> None:
    text = (Path(str(CHECKOUT)) / "docs" / "sources-and-sinks.md").read_text()
    rows = [line.split("|")[1].replace("`", "").strip() for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if SEEN.get(row) not in SCENARIOS] == []


@pytest.mark.long
@pytest.mark.parametrize("name", [s.name for s in STATEFUL])
def test_checkpoint_of_an_operator_is_on_the_disk_before_the_sink_commits(kept: Box, tmp_path: Path, name: str) -> None:
    """And a power cut that leaves the newest state empty all the same is among what ``make chaos-states`` resumes."""
    recorded = Recorded.make(SCENARIOS[name], kept, tmp_path)
    assert unguarded(recorded.recording) == []
    cuts = [m.what for m in moments(recorded.recording) if m.kind == POWER]
    assert [what for what in cuts if what.startswith("unsynced checkpoint")] == [], "the sink has what is durable"
    assert {"/commits/" in what for what in cuts if what.startswith("empty state")} == {True, False}


def test_driver_of_a_recorded_state_is_known_to_be_dead(recorded: Recorded) -> None:
    at_work = next(m for m in moments(recorded.recording) if m.kind == DEATH and m.point == "batch-started")
    at_work.tree.write(recorded.box.home)
    with closing(sqlite3.connect(recorded.box.home / "ledger.db")) as database:
        ((holder, expires),) = database.execute("SELECT holder, expires FROM sluice_lease").fetchall()
    assert json.loads(holder)["run"] == RUN
    assert expires > 0
    assert recorded.box.ledger.runs.at_work(recorded.box.name) == {}, (
        "the retry would have to wait for the lease to lapse"
    )


@pytest.mark.long
def test_real_kill_leaves_one_of_the_recorded_states(recorded: Recorded) -> None:
    point = KILLS[recorded.scenario.name]
    recorded.recording.before.write(recorded.box.home)
    recorded.box.run(RUN, kill_at=point, **recorded.scenario.options)
    left = likeness(Tree.read(recorded.box.home))
    states = [m for m in moments(recorded.recording) if m.kind == DEATH]
    first = next(n for n, moment in enumerate(states) if moment.point == point)
    assert left == likeness(states[first - 1].tree)  # the last state before anything was done behind the point


def test_durable_steps_lie_between_two_points(recorded: Recorded) -> None:
    assert unguarded(recorded.recording) == []


def test_durable_step_without_a_name_is_refused(recorded: Recorded) -> None:
    done = recorded.recording
    index = next(n for n, op in enumerate(done.operations) if op.to == "sink-committed")
    for new in (Operation("open", "table/_progress"), Operation("open", f"logs/{recorded.box.name}/position")):
        with pytest.raises(UnknownStepError):
            list(kinds(type(done)(done.before, [*done.operations[:index], new])))
    ended = next(n for n, op in enumerate(done.operations) if op.to == "query-ended")
    elsewhere = Operation("open", "table/batches/late/part-0.parquet")
    late = type(done)(done.before, [*done.operations[: ended + 1], elsewhere])
    assert any(step.startswith("sink files") for step in unguarded(late))


def test_steps_name_points_that_exist() -> None:
    named = {point for windows in BETWEEN.values() for window in windows for points in window for point in points}
    assert named - {BEGIN} <= set(POINTS)
