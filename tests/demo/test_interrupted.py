"""Live runs that are interrupted in a real Airflow: triggered twice, ended from the UI, orphaned by their worker."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from tests.fixtures.inside import MODULES
from tests.fixtures.stack import Host, Stack, clean_environment

pytestmark = [getattr(pytest.mark, name) for name in ("airflow", "kafka", "spark", "long")]
pytestmark.append(pytest.mark.timeout(900))

PIPELINE = """\
pipeline: orders
source: {kafka: {topics: [orders], max_records_per_batch: 20}}
decode: {text: {}}
transform: {python: "gate:passing"}
sink: {delta: {path: orders}}
"""


class Gated(Stack):
    """Drivers stand still at the gate of ``tests/fixtures/modules/gate.py`` until it is opened for all of them."""

    def __init__(self, root: Path, database: str | None) -> None:
        self.gate = root / "gate"
        self.gate.mkdir()
        settings = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(MODULES), os.environ.get("PYTHONPATH", "")])),
            "GATE_AT": "before-sink-commit",
            "GATE_DIR": str(self.gate),
            # how soon the scheduler misses a worker that is gone; five minutes by default
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        }
        super().__init__(Host(root, settings=settings, database=database), "orders", PIPELINE)
        self.topics.create("orders", 2)
        self.fed = 0

    def feed(self, count: int) -> None:
        self.topics.produce("orders", [(n % 2, None, b"an order") for n in range(count)])
        self.fed += count

    def await_gate(self) -> None:
        """Return when a driver stands at the gate."""
        self.await_that((self.gate / "reached").exists, "a driver reached the gate")

    def close_gate(self) -> None:
        """Let the next driver stop again."""
        for name in ("reached", "open"):
            (self.gate / name).unlink(missing_ok=True)

    def trigger(self) -> str:
        return self.airflow.trigger("orders")

    def task(self, run: str, name: str = "ingest") -> dict[str, Any]:
        return dict(self.airflow.call("GET", f"/dags/orders/dagRuns/{run}/taskInstances/{name}"))

    def state(self, run: str) -> str:
        return str(self.airflow.call("GET", f"/dags/orders/dagRuns/{run}")["state"])

    def drivers(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if any(word.endswith("/job.py") for word in line) and str(self.file) in line and "java" in line[0]:
                found.append(process)
        return found

    def assert_once(self) -> None:
        """Each record that was fed is in the table once."""
        rows = DeltaTable(str(self.home / "orders")).to_pyarrow_table().to_pylist()
        held = Counter((r["_partition"], r["_offset"]) for r in rows)
        assert (sum(held.values()), set(held.values())) == (self.fed, {1})
        reached = self.ledger.offsets.reached("orders")["orders"]
        assert reached == self.topics.ends("orders")


@pytest.fixture
def stack(tmp_path: Path, airflow_database: str | None) -> Iterator[Gated]:
    with clean_environment():
        stack = Gated(tmp_path, airflow_database)
        try:
            yield stack
        finally:
            (stack.gate / "open").touch()
            stack.host.end()


def test_demo_runs_that_are_interrupted_write_each_record_once(stack: Gated) -> None:
    stack.feed(50)
    stack.airflow.start()
    stack.begin()

    # triggered twice: the second one waits its turn, and finds nothing
    first, second = stack.trigger(), stack.trigger()
    stack.await_gate()
    assert stack.state(second) == "queued"

    # ended from the UI: the driver is gone within seconds
    stack.airflow.call("PATCH", f"/dags/orders/dagRuns/{first}/taskInstances/ingest", {"new_state": "failed"})
    stack.await_that(lambda: not stack.drivers(), "the driver ended", 60)
    (stack.gate / "open").touch()
    stack.await_that(lambda: stack.state(first) == "failed" and stack.state(second) == "success", "both runs ended")
    stack.assert_once()
    account = stack.ledger.runs.account("orders", second)
    assert (account["written"], account["lost"]) == (50, 0)

    # the worker dies, its driver lives on: the task is tried again, and nothing is written twice
    stack.close_gate()
    stack.feed(50)
    third = stack.trigger()
    stack.await_gate()
    (driver,) = stack.drivers()
    for parent in driver.parents():
        if "airflow worker" in " ".join(parent.cmdline()) or "task supervisor" in " ".join(parent.cmdline()):
            parent.kill()
    stack.await_that(lambda: stack.task(third)["state"] == "up_for_retry", "Airflow missed the worker")
    assert driver.is_running(), "what is to be shown is a driver that outlives its worker"
    (stack.gate / "open").touch()
    stack.await_that(lambda: stack.state(third) in ("success", "failed"), "the run ended", 300)
    stack.await_that(lambda: not stack.drivers(), "no driver is left", 60)
    if stack.state(third) == "failed":
        stack.airflow.call("POST", "/dags/orders/clearTaskInstances",
                           {"dry_run": False, "dag_run_id": third, "only_failed": True})  # fmt: skip
        stack.await_that(lambda: stack.state(third) == "success", "the cleared run ended", 300)
    stack.assert_once()
