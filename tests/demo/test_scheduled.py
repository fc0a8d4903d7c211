"""``airflow backfill create`` in a real Airflow, beside live runs: scheduler, broker and Spark; nothing is faked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.fixtures.stack import Stack, clean_environment

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

PIPELINE = """\
pipeline: orders
source: {{kafka: {{topics: [orders]}}}}
decode: {{json: {{schema: "id BIGINT"}}}}
transform: {{sql: "SELECT *, {version} AS version FROM source"}}
sink: {{delta: {{path: orders}}}}
schedule: {{cron: "0 0 * * *", timezone: UTC}}
"""
FIRST = datetime(2013, 3, 1, tzinfo=UTC)
DAYS = 6
EACH = 10


class Daily(Stack):
    """A pipeline with a run each day, and records of some days of 2013."""

    def __init__(self, root: Path, database: str | None) -> None:
        super().__init__(root, "orders", PIPELINE.format(version=1), database=database)
        self.topics.create("orders", 2, {"retention.ms": "-1"})
        self.fed = 0

    def feed(self, moment: datetime, count: int = EACH) -> None:
        """Produce so many records, a minute apart."""
        self.topics.produce(
            "orders",
            [
                (n % 2, None, b'{"id": %d}' % (self.fed + n), int((moment + timedelta(minutes=n)).timestamp() * 1000))
                for n in range(count)
            ],
        )
        self.fed += count

    def backfill(self, *arguments: str, code: int = 0) -> str:
        """Run ``airflow backfill create`` to its end; return what it printed."""
        airflow = str(Path(sys.executable).with_name("airflow"))
        done = subprocess.run(
            [airflow, "backfill", "create", "--dag-id", self.pipeline, *arguments],
            env=self.airflow.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def await_backfill(self) -> None:
        """Return when the scheduler has ended all of its runs."""
        self.await_that(
            lambda: all(
                b["completed_at"] for b in self.airflow.call("GET", f"/backfills?dag_id={self.pipeline}")["backfills"]
            ),
            "the backfill ended",
            600,
        )

    def of_backfill(self) -> list[dict[str, Any]]:
        """The runs that backfills made."""
        return [run for run in self.runs() if run["run_type"] == "backfill"]

    def trigger(self, **conf: Any) -> str:
        """Start a run by hand, as the form does; return its id."""
        made = self.airflow.call("POST", f"/dags/{self.pipeline}/dagRuns", {"logical_date": None, "conf": conf})
        return str(made["dag_run_id"])

    def ended(self, run: str) -> bool:
        """Whether a run has ended, well or not."""
        return self.airflow.call("GET", f"/dags/{self.pipeline}/dagRuns/{run}")["state"] in ("success", "failed")

    def table(self) -> Counter[tuple[int, int, int]]:
        """The multiset of (partition, offset, version)."""
        rows = DeltaTable(str(self.home / "orders")).to_pyarrow_table().to_pylist()
        return Counter((r["_partition"], r["_offset"], r["version"]) for r in rows)

    def versions(self) -> dict[int, int]:
        """How many rows of each version of the transform."""
        return dict(Counter(version for _, _, version in self.table().elements()))

    def drained(self) -> bool:
        """Whether live runs have read all that was fed."""
        ends = self.topics.ends("orders")
        return self.ledger.reached(self.pipeline).get("orders", {}) == {p: end for p, end in ends.items() if end}


@pytest.fixture
def stack(tmp_path: Path, airflow_database: str | None) -> Iterator[Daily]:
    with clean_environment():
        stack = Daily(tmp_path, airflow_database)
        try:
            yield stack
        finally:
            stack.end()


def dates(first: int, last: int) -> list[str]:
    return ["--from-date", f"2013-03-{first:02d}", "--to-date", f"2013-03-{last:02d}"]


def test_days_are_made_anew_beside_the_live_pipeline(stack: Daily) -> None:
    for day in range(DAYS):
        stack.feed(FIRST + timedelta(days=day))
    stack.airflow.start()
    stack.airflow.wait_for_dag("orders")
    # catchup is off: one scheduled run, for yesterday. It means what is available now, that is: all of it
    stack.await_that(stack.drained, "the scheduled run drained the topic")
    stack.await_that(lambda: stack.runs()[0]["state"] == "success", "the scheduled run ended")
    before = stack.table()
    assert (sum(before.values()), set(before.values())) == (DAYS * EACH, {1})

    said = stack.backfill(*dates(2, 4), "--dry-run")
    assert all(day in said for day in ("2013-03-02", "2013-03-03", "2013-03-04"))
    assert stack.of_backfill() == []

    # the fix comes to history by way of the backfill, and to what is new by way of live runs
    stack.file.write_text(PIPELINE.format(version=2))
    stack.backfill(
        *dates(2, 4), "--max-active-runs", "2", "--run-backwards", "--dag-run-conf", '{"reason": "version 2"}'
    )
    stack.feed(datetime.now(UTC))
    live = stack.trigger()
    stack.await_backfill()
    stack.await_that(lambda: stack.ended(live), "the live run ended")
    runs = stack.of_backfill()
    assert [run["state"] for run in runs] == ["success"] * 3
    assert stack.versions() == {1: 3 * EACH, 2: 4 * EACH}
    assert Counter((p, o) for p, o, _ in stack.table().elements()).total() == (DAYS + 1) * EACH
    ledger = stack.ledger
    for run in runs:
        account = ledger.account("orders", f"{run['dag_run_id']}__interval")
        assert (account["written"], account["replaced"], account["verdict"]) == (EACH, EACH, "passed")
        assert account["reason"] == "version 2"
    assert ledger.account("orders", live)["written"] == EACH

    # none: days that have a run are left alone. failed: there is none. completed: made anew, under the same run
    for behaviour in ("none", "failed"):
        stack.backfill(*dates(2, 4), "--reprocess-behavior", behaviour)
        stack.await_backfill()
    assert all(ledger.run("orders", f"{r['dag_run_id']}__interval").attempts == 1 for r in runs)  # type: ignore[union-attr]
    stack.file.write_text(PIPELINE.format(version=3))
    stack.backfill(*dates(3, 3), "--reprocess-behavior", "completed")

    # a cleared task is done again, beside it, and so is a run that the form starts
    third = next(run for run in stack.of_backfill() if "2013-03-04" in run["logical_date"])
    body = {"dry_run": False, "dag_run_id": third["dag_run_id"], "task_ids": ["ingest"], "only_failed": False}
    stack.airflow.call("POST", "/dags/orders/clearTaskInstances", body)
    by_hand = stack.trigger(mode="interval", start="2013-03-05T00:00:00Z", end="2013-03-06T00:00:00Z", reason="by hand")
    stack.await_that(lambda: stack.ended(by_hand) and stack.ended(third["dag_run_id"]), "both ended", 600)
    stack.await_backfill()
    assert stack.versions() == {1: 2 * EACH, 2: 2 * EACH, 3: 3 * EACH}
    assert set(stack.table().values()) == {1}

    # a combination that makes no sense ends at once, and is not tried again
    began = time.monotonic()
    bad = stack.trigger(mode="interval", start="2013-03-05T00:00:00Z")
    stack.await_that(lambda: stack.ended(bad), "the bad run ended", 240)
    print(f"refused {time.monotonic() - began:.0f} s after it was triggered")
    tasks = stack.airflow.call("GET", f"/dags/orders/dagRuns/{bad}/taskInstances")["task_instances"]
    assert {t["task_id"]: t["state"] for t in tasks}["wait_for_lag"] == "failed"
    assert {t["task_id"]: t["try_number"] for t in tasks}["wait_for_lag"] == 1

    audit = subprocess.run(
        [str(Path(sys.executable).with_name("sluice")), "audit", "--deep", str(stack.file)],
        env=stack.airflow.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert audit.returncode == 0, audit.stdout + audit.stderr
