"""An executor is killed during a batch, on a real cluster of two: hot reads nothing again, replay its share."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.chaos.drivers import ended
from tests.fixtures.events import EventLog
from tests.fixtures.inside import MODULES
from tests.fixtures.runs import Driver, Sandbox, await_that

from sluice_demo.spark import SparkCluster

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


QUICK = {f"spark.{who}.defaultJavaOptions": "-XX:TieredStopAtLevel=1" for who in ("driver", "executor")}
"""As a run on this machine alone is compiled; without it, each of four JVMs compiles for hours of work."""


@dataclass
class Held:
    """A run whose tasks stop once they have their records and before they write any; see ``modules/taskgate.py``."""

    driver: Driver
    cluster: SparkCluster
    gate: Path
    passed: set[str] = field(default_factory=set)
    killed_at: float = 0.0

    def executors(self) -> list[int]:
        (pids,) = self.cluster.executor_pids().values()
        return pids

    def tasks(self, attempt: str = "*") -> set[str]:
        """The tasks at the gate; ``task-STAGE-PARTITION-ATTEMPT``."""
        return {
            task.name for task in self.gate.glob(f"task-*-*-{attempt}") if task.name.split("-")[1] not in self.passed
        }

    def await_both(self) -> None:
        """Return when both executors stand at the gate: each has one core."""
        await_that(lambda: len(self.tasks()) == 2, "both executors hold a task", self.driver.process)

    def await_replacement(self) -> None:
        """Return when the task of a killed executor stands there again: the other executor has no core for it."""
        await_that(lambda: self.tasks("1"), "a new executor took over", self.driver.process)

    def kill(self, executor: int) -> None:
        os.kill(executor, signal.SIGKILL)
        self.killed_at = time.time()

    def let_go(self) -> None:
        (stage,) = {task.split("-")[1] for task in self.tasks()}
        self.passed.add(stage)
        (self.gate / f"open-{stage}").touch()


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events")


@contextmanager
def held(cluster: SparkCluster, sandbox: Sandbox, log: EventLog) -> Iterator[Held]:
    gate = sandbox.home / "taskgate"
    gate.mkdir()
    await_that(lambda: not cluster.executor_pids(), "the executors of earlier tests are gone")
    driver = sandbox.start(
        "r",
        TASK_GATE=str(gate),
        AIRFLOW_CONN_SPARK_DEFAULT=json.dumps({"conn_type": "spark", "host": cluster.master}),
        **log.env,
    )
    try:
        yield Held(driver, cluster, gate)
    finally:
        if driver.process.poll() is None:
            driver.signal(signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("transform", ["held", "held_behind_a_shuffle"])
def test_replay_fetches_again_what_a_killed_executor_had_read(
    cluster: SparkCluster, sandbox: Sandbox, log: EventLog, transform: str
) -> None:
    """Behind a shuffle, the tasks that had read its rows run again, successfully for the second time."""
    sandbox.configure(
        kafka={"max_records_per_batch": 1000}, transform={"python": f"taskgate:{transform}"}, spark={"conf": QUICK}
    )
    sandbox.feed(400)
    with held(cluster, sandbox, log) as run:
        run.await_both()
        run.kill(run.executors()[0])
        run.let_go()
        ended(run.driver)
    sandbox.assert_exact()
    again = [(read.attempt, read.records) for read in log.kafka_reads() if read.launched > run.killed_at]
    assert again == [(1, 200)] if transform == "held" else again


def test_hot_fetches_nothing_again_though_one_executor_after_the_other_dies(
    cluster: SparkCluster, sandbox: Sandbox, log: EventLog
) -> None:
    """First one is killed, and in the next batch the one that was left then: its new twin has to have everything.

    Before the second kill all records are deleted from the broker, so that nothing could be fetched again; nor are
    those for the quarantine, which are staged after it.
    """
    sandbox.configure(
        kafka={"max_records_per_batch": 200},
        transform={"python": "taskgate:held"},
        recovery="hot",
        spark={"conf": QUICK},
    )
    produced = sandbox.feed(400, bad_every=10)
    with held(cluster, sandbox, log) as run:
        run.await_both()
        first, second = run.executors()
        run.kill(first)
        first_kill = run.killed_at
        run.await_replacement()
        run.let_go()
        run.await_both()
        sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
        run.kill(second)
        run.let_go()
        ended(run.driver)

    reads = log.kafka_reads()
    assert sum(read.records for read in reads) == 400, "each batch was read once"
    assert sum(read.records for read in reads if read.launched < first_kill) == 200
    assert not [read for read in reads if read.launched > run.killed_at]
    assert not sandbox.on_broker()
    assert sandbox.sink() + sandbox.quarantine() == Counter(produced)
    assert sandbox.account("r") == dict(planned=400, written=360, filtered=0, quarantined=40, absent=0, lost=0)
    assert not sandbox.ledger.runs.account(sandbox.name, "r").get("notes"), "no batch continued as replay"
    sandbox.assert_balanced()


@pytest.mark.long
def test_hot_on_the_arrow_path_reads_only_the_share_of_a_killed_executor_again(
    cluster: SparkCluster, sandbox: Sandbox, log: EventLog
) -> None:
    gate = sandbox.home / "taskgate"
    conf = {"spark.executorEnv.PYTHONPATH": str(MODULES), "spark.executorEnv.TASK_GATE": str(gate), **QUICK}
    sandbox.configure(
        kafka={"max_records_per_batch": 200_000}, transform={"arrow": "arrowgate:held"}, recovery="hot",
        spark={"conf": conf},
    )  # fmt: skip
    sandbox.feed(120_000)  # a batch that the driver does not read by itself
    with held(cluster, sandbox, log) as run:
        await_that(lambda: len(list(gate.glob("worker-*"))) == 2, "both executors read", run.driver.process)
        run.kill(run.executors()[0])
        await_that(lambda: len(list(gate.glob("worker-*"))) == 3, "a new executor took over", run.driver.process)
        (gate / "open").touch()
        end = ended(run.driver)
    assert "Spark path" not in end.stderr
    assert "goes on without it" not in end.stderr
    assert not log.kafka_reads(), "Spark read nothing"
    assert not sandbox.ledger.runs.account(sandbox.name, "r").get("notes")
    sandbox.assert_exact()
