"""Kafka: its broker, topic and transactions between runs and during them; no record is passed over without a word.


What is refused before a run, case by case, is in tests/unit/run/test_preflight.py.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.chaos.cases import LONG, long
from tests.chaos.commands import drain, listed, said
from tests.chaos.drivers import PASSING, gated, lost, opened
from tests.fixtures.runs import Sandbox, good, refuse_a_recreated_topic

from sluice.home import Home
from sluice.run.checkpoint import Checkpoint

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def state(sandbox: Sandbox) -> tuple[object, ...]:
    """Everything that a refused run must leave as it was."""
    table, point = sandbox.table(), Checkpoint(Home(str(sandbox.home)).checkpoint(sandbox.name, 1))
    return table.version() if table else None, point.positions(), point.planned(), point.committed()


def test_kafka_source_that_is_down_trimmed_or_recreated_is_refused_by_name_and_nothing_changes(
    sandbox: Sandbox,
) -> None:
    drain(sandbox, 6, "first")
    before = state(sandbox)
    sandbox.feed(10)
    sandbox.broker.kill()
    assert sandbox.broker.bootstrap in sandbox.run("down", expect=20).message
    sandbox.broker.start()
    sandbox.topics.delete_records(sandbox.topic, {1: 7})
    gone = sandbox.run("trimmed", expect=21).message
    assert f"{sandbox.topic}-1 [3, 7)" in gone
    assert f"{sandbox.topic}-0" not in gone
    assert "ignore_range" in gone
    sandbox.topics.recreate(sandbox.topic, 2)
    sandbox.topics.produce(sandbox.topic, [(p, None, good(n)) for n in range(20) for p in (0, 1)])
    sandbox.run("recreated", expect=22)
    assert state(sandbox) == before
    runs = {r.run: (r.state, (r.error or {}).get("exit_code")) for r in sandbox.ledger.runs.newest(sandbox.name)}
    assert runs == {
        "first": ("done", None), "down": ("failed", 20), "trimmed": ("failed", 21), "recreated": ("failed", 22),
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "ignore_range"])
def test_kafka_log_that_lost_its_end_and_went_on_is_refused_by_each_run_until_a_reset(
    sandbox: Sandbox, tmp_path: Path, recovery: str
) -> None:
    """As after an unclean election: the broker gets the partition back as it was some records ago."""
    sandbox.configure(recovery=recovery)
    sandbox.feed(6)
    log = next(sandbox.broker.data_dir.rglob(f"{sandbox.topic}-1"))
    sandbox.broker.kill()
    shutil.copytree(log, tmp_path / "earlier")
    sandbox.broker.start()
    drain(sandbox, 6, "first")
    before = state(sandbox)
    sandbox.broker.kill()
    sandbox.run("down", expect=20)
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "earlier", log)
    sandbox.broker.start()
    sandbox.topics.produce(sandbox.topic, [(1, None, good(100 + n)) for n in range(8)])
    span = ("2020-01-01T00:00:00Z", datetime.now(UTC).isoformat())
    for run, more in {"one": {}, "two": {}, "interval": {"interval": span}, "three": {}}.items():
        assert f"{sandbox.topic}-1 [3, 6)" in sandbox.run(run, expect=22, **more).message
    assert state(sandbox) == before
    said(sandbox, "reset", "--reason", "go on", "--yes")
    sandbox.run("behind")
    assert sandbox.account("behind")["written"] == 5


@LONG
def test_kafka_source_reads_a_topic_that_is_added_from_its_beginning_and_leaves_none_out(sandbox: Sandbox) -> None:
    """Spark logs positions of all topics together: without one it would take the file for a loss, or read it twice."""
    other = f"{sandbox.topic}-more"
    sandbox.topics.create(other, 1)
    drain(sandbox, 4, "one")
    both = {"topics": [sandbox.topic, other]}
    sandbox.configure(kafka=both)
    sandbox.produce([(0, None, good(n)) for n in (10, 11)], other)
    sandbox.run("two")
    for recovery in ("replay", "ignore_range"):
        sandbox.configure(recovery=recovery)
        assert f"'{other}'" in sandbox.run("three", expect=10).message
    sandbox.configure(kafka=both)
    sandbox.produce([(0, None, good(12))], other)
    drain(sandbox, 2, "three")
    assert sandbox.sink() == Counter(sandbox.produced)


@LONG
def test_kafka_partition_that_is_added_behind_a_killed_run_is_read_from_its_beginning(sandbox: Sandbox) -> None:
    """SPARK-53560."""
    drain(sandbox, 12, "r", kill_at="rows-staged:2")
    sandbox.topics.add_partitions(sandbox.topic, 3)
    sandbox.produce([(2, None, good(n)) for n in range(100, 104)])
    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.account("r")["written"] == 16
    assert {p for _, p, _ in sandbox.sink()} == {0, 1, 2}


@LONG
def test_kafka_partition_that_is_added_is_refused_where_offsets_decide_which_row_stays(sandbox: Sandbox) -> None:
    sandbox.configure(sink={"delta": {"path": "table", "mode": "upsert", "key": ["id"], "sequence": "_offset"}})
    drain(sandbox, 2, "before")
    sandbox.topics.add_partitions(sandbox.topic, 3)
    sandbox.produce([(2, None, good(100))])
    for run in ("first", "second"):
        assert f"new partitions: {sandbox.topic}-2" in sandbox.run(run, expect=10).message
    sandbox.configure(sink={"delta": {"path": "table", "mode": "upsert", "key": ["id"], "sequence": "_timestamp"}})
    sandbox.run("third")
    assert sandbox.account("third")["written"] == 1


# --- while a run reads -----------------------------------------------------------------------------------------------


@LONG
def test_kafka_records_that_are_deleted_while_they_are_read_are_told_from_gaps(sandbox: Sandbox) -> None:
    sandbox.configure(**PASSING)
    sandbox.feed(6)
    driver = gated(sandbox, "batch-started")
    sandbox.topics.delete_records(sandbox.topic, {0: 2})
    assert f"{sandbox.topic}-0 [0, 2)" in opened(driver, 21).message
    assert not sandbox.sink()


@LONG
@pytest.mark.parametrize(
    ("strategy", "transform", "gate_at"),
    [
        ("replay", {"arrow": "gate:table"}, "before-sink-commit:2"),
        *long(
            ("replay", {"python": "gate:passing"}, "before-sink-commit:2"),
            ("wal", {"arrow": "gate:table"}, "segments-staged:2"),
            ("ignore_range", {"python": "gate:passing"}, "batch-started:2"),
        ),
    ],
    ids=["replay-arrow", "replay-spark", "wal", "ignore_range"],
)
def test_kafka_topic_that_is_recreated_while_a_run_reads_it_is_refused_before_a_record_of_it_is_committed(
    sandbox: Sandbox, strategy: str, transform: dict[str, str], gate_at: str
) -> None:
    sandbox.configure(recovery=strategy, transform=transform)
    sandbox.feed(24)
    refuse_a_recreated_topic(sandbox, sandbox.start("r", gate_at=gate_at))
    assert max(row["id"] for row in listed(sandbox)) < 24
    assert 0 < sandbox.sink().total() < 24
    assert sandbox.sink() <= Counter(sandbox.produced)
    assert not lost(sandbox)
    sandbox.run("again", expect=22)


@LONG
def test_kafka_topic_that_is_recreated_while_an_interval_reads_it_replaces_no_row(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"arrow": "gate:table"})
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    noon = round((end - timedelta(hours=12)).timestamp() * 1000)
    sandbox.produce([(n % 2, None, good(n), noon + n) for n in range(6)])
    sandbox.run("live")
    before = state(sandbox)
    day = (f"{end - timedelta(days=1):%Y-%m-%d}", f"{end:%Y-%m-%d}")
    refuse_a_recreated_topic(sandbox, sandbox.start("interval", gate_at="rows-staged", interval=day))
    assert state(sandbox) == before


@LONG
@pytest.mark.parametrize("trouble", ["dies", "pauses"])
def test_kafka_broker_that_dies_or_pauses_in_a_batch_is_waited_for(sandbox: Sandbox, trouble: str) -> None:
    sandbox.configure(**PASSING)
    sandbox.feed(12, bad_every=4)
    driver = gated(sandbox, "batch-started:2")
    if trouble == "dies":
        sandbox.broker.kill()
        sandbox.broker.start()
    else:
        sandbox.broker.pause()
        driver.open_gate()
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                driver.process.wait(10)
        finally:
            sandbox.broker.resume()
    opened(driver)
    sandbox.assert_exact()
