"""``schedule: on_lag`` in a real Airflow: scheduler, triggerer, broker and Spark; nothing is faked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.stack import Stack, clean_environment

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1200)]

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
SETTINGS = {
    # How soon another triggerer takes over what a killed one ran; half a minute by default.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}


class OnLag(Stack):
    """One pipeline on lag."""

    def __init__(self, root: Path, database: str | None) -> None:
        options = f", poll_interval={INTERVAL}"
        super().__init__(root, "orders", PIPELINE, settings=SETTINGS, options=options, database=database)
        self.topics.create("orders", 2)
        self.triggerer: subprocess.Popen[bytes] | None = None

    def end(self) -> None:
        if self.triggerer is not None:
            os.killpg(self.triggerer.pid, signal.SIGTERM)
            self.triggerer.wait(30)
        super().end()

    def feed(self, count: int) -> None:
        self.topics.produce("orders", [(n % 2, None, b"an order") for n in range(count)])

    def events(self) -> int:
        assets = self.airflow.call("GET", "/assets?uri_pattern=x-sluice://orders/lag")["assets"]
        return int(self.airflow.call("GET", f"/assets/events?asset_id={assets[0]['id']}")["total_entries"])

    def looks(self, count: int) -> None:
        """Let so many looks pass."""
        time.sleep(count * INTERVAL / 2 + 1)

    @contextlib.contextmanager
    def until_it_says(self, words: str) -> Iterator[None]:
        """After the block, wait until the watcher has said something since the block began."""
        known = self.log.read_text(errors="replace").count(words)
        yield
        self.await_that(lambda: self.log.read_text(errors="replace").count(words) > known, words)

    def await_run(self, number: int) -> tuple[float, dict[str, Any]]:
        """Wait for the run of this number to begin and to end; return how long it took to begin."""
        begun = self.await_that(lambda: len(self.runs()) >= number, f"run {number} began", 240)
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
def stack(tmp_path: Path, airflow_database: str | None) -> Iterator[OnLag]:
    with clean_environment():
        stack = OnLag(tmp_path, airflow_database)
        try:
            yield stack
        finally:
            stack.end()


def test_a_backlog_starts_one_run_and_only_one(stack: OnLag) -> None:
    stack.feed(LIMIT - 20)
    stack.airflow.start()
    stack.airflow.wait_for_dag("orders")
    stack.await_that(lambda: "orders: NEW" in stack.log.read_text(errors="replace"), "the watcher looks")
    stack.looks(2)
    assert stack.runs() == [], "below the limit"

    stack.feed(40)
    begun, run = stack.await_that(lambda: stack.runs(), "a run began", 240), stack.runs()[0]
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
    assert [stack.ledger.account("orders", run["dag_run_id"])["written"] for run in stack.runs()] == [120, 120]
