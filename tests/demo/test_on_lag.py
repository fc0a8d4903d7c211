"""``schedule: on_lag`` in a real Airflow: scheduler, triggerer, broker and Spark; nothing is faked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from sluice.connections import variable_of
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.local import jars
from sluice.local.airflow import Airflow
from sluice.local.kafka import Broker, Topics
from sluice.local.machine import free_port
from sluice.submit import archive_file

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(600)]

LIMIT = 100
INTERVAL = 6.0

PIPELINE = f"""\
pipeline: orders
source: {{kafka: {{topics: [orders]}}}}
decode: {{text: {{}}}}
sink: {{delta: {{path: orders}}}}
schedule: on_lag
lag: {{max_records: {LIMIT}}}
"""
DAG_FILE = """\
from sluice_airflow.factory import build_dag

dag = build_dag({file!r}, poll_interval={interval})
"""
SETTINGS = {
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
    # How soon another triggerer takes over what a killed one ran; half a minute by default.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}


class Stack:
    """Broker and Airflow in a home of their own, and one pipeline on lag."""

    def __init__(self, root: Path) -> None:
        home = root / "home"
        (home / "jars").mkdir(parents=True)
        for name in ("kafka", "spark"):
            (home / "jars" / name).symlink_to(jars.fetch(name)[0].parent)
        (home / "jvm").symlink_to(archive_file(Home.from_env()).parent)
        (root / "dags").mkdir()
        (root / "orders.yaml").write_text(PIPELINE)
        (root / "dags" / "orders.py").write_text(DAG_FILE.format(file=str(root / "orders.yaml"), interval=INTERVAL))
        self.home = home
        self.broker = Broker(home / "kafka", port=0, jar_files=jars.fetch("kafka")).start()
        self.topics = Topics(self.broker.bootstrap)
        self.topics.create("orders", 2)
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.broker.bootstrap}}
        self.airflow = Airflow(
            home / "airflow",
            port=free_port("127.0.0.1"),
            connections={
                variable_of("kafka_default"): json.dumps(kafka),
                variable_of("spark_default"): json.dumps({"conn_type": "spark", "host": "local[2]"}),
            },
            dags=root / "dags",
            settings={**SETTINGS, "SLUICE_HOME": str(home)},
        )
        self.triggerer: subprocess.Popen[bytes] | None = None
        self.log = self.airflow.log_file

    def end(self) -> None:
        if self.triggerer is not None:
            os.killpg(self.triggerer.pid, signal.SIGTERM)
            self.triggerer.wait(30)
        self.airflow.stop()
        self.broker.kill()

    def feed(self, count: int) -> None:
        self.topics.produce("orders", [(n % 2, None, b"an order") for n in range(count)])

    def runs(self) -> list[dict[str, Any]]:
        return list(self.airflow.call("GET", "/dags/orders/dagRuns?order_by=run_after")["dag_runs"])

    def events(self) -> int:
        assets = self.airflow.call("GET", "/assets?uri_pattern=x-sluice://orders/lag")["assets"]
        return int(self.airflow.call("GET", f"/assets/events?asset_id={assets[0]['id']}")["total_entries"])

    def looks(self, count: int) -> None:
        """Let so many looks pass."""
        time.sleep(count * INTERVAL / 2 + 1)

    def await_that(self, condition: Callable[[], Any], what: str, seconds: float = 180) -> float:
        began = time.monotonic()
        while not self._holds(condition):
            if time.monotonic() > began + seconds:
                raise AssertionError(f"in vain: {what}\n{self.log.read_text(errors='replace')[-6000:]}")
            time.sleep(0.2)
        return time.monotonic() - began

    @staticmethod
    def _holds(condition: Callable[[], Any]) -> bool:
        try:
            return bool(condition())
        except httpx.TransportError:  # an API server on a busy machine
            return False

    @contextlib.contextmanager
    def until_it_says(self, words: str) -> Iterator[None]:
        """After the block, wait until the watcher has said something since the block began."""
        known = self.log.read_text(errors="replace").count(words)
        yield
        self.await_that(lambda: self.log.read_text(errors="replace").count(words) > known, words)

    def await_run(self, number: int) -> tuple[float, dict[str, Any]]:
        """Wait for the run of this number to begin and to end; return how long it took to begin."""
        begun = self.await_that(lambda: len(self.runs()) >= number, f"run {number} began", 60)
        self.await_that(lambda: self.runs()[number - 1]["state"] in ("success", "failed"), f"run {number} ended")
        return begun, self.runs()[number - 1]

    def kill_the_triggerer(self) -> None:
        """Kill it as a machine that goes away does, and start another one."""
        assert self.airflow.process is not None
        for child in self.airflow.process.children(recursive=True):
            if "triggerer" in " ".join(child.cmdline()):
                child.kill()
        self.log = self.airflow.folder / "triggerer.log"
        with self.log.open("wb") as log:
            self.triggerer = subprocess.Popen(
                [str(Path(sys.executable).with_name("airflow")), "triggerer"],
                env=self.airflow.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "SLUICE", "PYSPARK"))}
    with mock.patch.dict(os.environ, clean, clear=True):
        stack = Stack(tmp_path)
        try:
            yield stack
        finally:
            stack.end()


def test_a_backlog_starts_one_run_and_only_one(stack: Stack) -> None:
    stack.feed(LIMIT - 20)
    stack.airflow.start()
    stack.airflow.wait_for_dag("orders")
    stack.await_that(lambda: "orders: NEW" in stack.log.read_text(errors="replace"), "the watcher looks")
    stack.looks(2)
    assert stack.runs() == [], "below the limit"

    stack.feed(40)
    begun, run = stack.await_that(lambda: stack.runs(), "a run began", 60), stack.runs()[0]
    print(f"the first run began {begun:.1f} s after the crossing (interval {INTERVAL:.0f} s)")
    assert (run["run_type"], run["logical_date"]) == ("asset_triggered", None)
    stack.kill_the_triggerer()  # in the middle of the run that its event started
    _, run = stack.await_run(1)
    assert run["state"] == "success"
    assert run["triggering_user_name"] is None

    stack.await_that(lambda: "orders: OK" in stack.log.read_text(errors="replace"), "another triggerer took over")
    with stack.until_it_says("orders: BACKLOG"):
        stack.feed(LIMIT - 20)
    stack.looks(2)
    assert len(stack.runs()) == 1, "neither repeated after the restart, nor started by too little"

    with stack.until_it_says("orders: UNKNOWN"):
        stack.broker.kill()
    stack.looks(2)
    assert len(stack.runs()) == 1, "unknown starts nothing"
    with stack.until_it_says("orders: BACKLOG"):
        stack.broker.start()
    stack.feed(40)
    begun, run = stack.await_run(2)
    print(f"the second run began {begun:.1f} s after the crossing")
    assert run["state"] == "success"

    stack.looks(3)
    assert len(stack.runs()) == stack.events() == 2
    ledger = Ledger.open(f"sqlite:///{stack.home}/ledger.db")
    assert [ledger.account("orders", run["dag_run_id"])["written"] for run in stack.runs()] == [120, 120]
