"""An executor is killed in the middle of a batch, on a real cluster of two: what it costs under each strategy."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.events import EventLog
from tests.fixtures.runs import Outcome, Sandbox, await_that

from sluice.local.spark import SparkCluster

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

RECORDS = 400


def run_with_an_executor_killed(
    cluster: SparkCluster, sandbox: Sandbox, log: EventLog, gate: Path, meanwhile: Callable[[], object] = lambda: None
) -> tuple[Outcome, float]:
    """Kill an executor while both hold a task that has its records and has written none; return when that was."""
    gate.mkdir()
    await_that(lambda: not cluster.executor_pids(), "the executors of earlier tests are gone")
    driver = sandbox.start(
        "r",
        TASK_GATE=str(gate),
        AIRFLOW_CONN_SPARK_DEFAULT=json.dumps({"conn_type": "spark", "host": cluster.master}),
        **log.env,
    )
    try:
        await_that(lambda: len(list(gate.glob("task-*"))) == 2, "both tasks are at the gate", driver.process)
        meanwhile()
        (pids,) = cluster.executor_pids().values()
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        killed = time.time()
        (gate / "open").touch()
        return driver.wait(), killed
    finally:
        if driver.process.poll() is None:
            driver.signal(signal.SIGKILL)


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events")


def test_under_replay_what_a_killed_executor_had_read_is_fetched_again(
    cluster: SparkCluster, sandbox: Sandbox, log: EventLog, tmp_path: Path
) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 10_000}, transform={"python": "taskgate:held"})
    sandbox.feed(RECORDS)
    end, killed = run_with_an_executor_killed(cluster, sandbox, log, tmp_path / "gate")
    assert end.code == 0, end.stderr[-4000:]
    sandbox.assert_exact()
    again = [read for read in log.kafka_reads() if read.launched > killed]
    assert [(read.attempt, read.records) for read in again] == [(1, RECORDS // 2)]


def test_under_hot_nothing_is_fetched_again_and_kafka_may_have_lost_it_all(
    cluster: SparkCluster, sandbox: Sandbox, log: EventLog, tmp_path: Path
) -> None:
    """Once a batch is held its records are deleted from the broker, so that nothing could be fetched again.

    Nor are the records for the quarantine, which are staged after the kill.
    """
    sandbox.configure(kafka={"max_records_per_batch": 10_000}, transform={"python": "taskgate:held"}, recovery="hot")
    produced = sandbox.feed(RECORDS, bad_every=10)
    end, killed = run_with_an_executor_killed(
        cluster,
        sandbox,
        log,
        tmp_path / "gate",
        meanwhile=lambda: sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic)),
    )
    assert end.code == 0, end.stderr[-4000:]
    reads = log.kafka_reads()
    assert sum(read.records for read in reads) == RECORDS, "the batch was read once"
    assert not [read for read in reads if read.launched > killed]
    assert not sandbox.on_broker()
    assert sandbox.sink() + sandbox.quarantine() == Counter(produced)
    bad = RECORDS // 10
    assert sandbox.account("r") == dict(
        planned=RECORDS, written=RECORDS - bad, filtered=0, quarantined=bad, absent=0, lost=0
    )  # fmt: skip
    assert not sandbox.ledger.account(sandbox.name, "r").get("notes")
    sandbox.assert_balanced()
