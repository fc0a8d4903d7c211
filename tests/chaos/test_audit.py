"""The deep audit agrees with real runs, and names what is done to their tables afterwards."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def deep(sandbox: Sandbox, *, balanced: bool) -> dict[str, Any]:
    done = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert done.returncode == (0 if balanced else 1), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def rows_of(report: dict[str, Any]) -> tuple[int, int]:
    return report["tables"]["sink"]["rows"], report["tables"]["quarantine"]["rows"]


def test_runs_through_the_log_and_past_it_are_proved(sandbox: Sandbox) -> None:
    drops = {"sql": "SELECT * FROM source WHERE id % 5 <> 0"}
    partitioned = {"delta": {"path": "table", "partition_by": ["_topic", "_partition"]}}
    sandbox.configure(recovery="wal", rows="filter", transform=drops, sink=partitioned)
    sandbox.feed(20, bad_every=4)
    sandbox.run("through the log")
    sandbox.configure(rows="filter", transform=drops, sink=partitioned)
    sandbox.feed(9)
    sandbox.run("past it")
    report = deep(sandbox, balanced=True)
    assert rows_of(report) == (sum(sandbox.sink().values()), 5)
    assert report["tables"]["log"]["records"] == 20
    assert sandbox.total("filtered") > 0

    segment = next((sandbox.home / "logs").rglob("*.parquet"))
    segment.write_bytes(segment.read_bytes()[:-1])
    (problem,) = deep(sandbox, balanced=False)["problems"]
    assert f"/{segment.name} of {sandbox.topic}-" in problem
    assert "is truncated" in problem


def test_a_batch_that_a_dead_driver_left_is_told_from_a_wrong(sandbox: Sandbox) -> None:
    sandbox.feed(14, bad_every=5)
    sandbox.run("dies", kill_at="sink-committed:2")
    report = deep(sandbox, balanced=False)
    (problem,) = report["problems"]
    assert "holds batch 1 of epoch 1, the ledger ends with batch 0" in problem
    sandbox.run("fixes")
    assert rows_of(deep(sandbox, balanced=True)) == (11, 3)


@pytest.mark.long
def test_what_spark_does_to_a_table_is_seen_as_spark_sees_it(sandbox: Sandbox, spark: SparkSession) -> None:
    sandbox.feed(12)
    sandbox.run("r")
    table = f"delta.`{sandbox.home}/table`"
    names = {column: f"`{column}`" for column in spark.sql(f"SELECT * FROM {table}").columns} | {"name": "'double'"}
    spark.sql(f"INSERT INTO {table} SELECT {', '.join(names.values())} FROM {table} WHERE `_offset` IN (3, 4)")
    where = {f"{sandbox.topic}-{partition} [3, 5)" for partition in (0, 1)}
    found = set(deep(sandbox, balanced=False)["problems"])
    assert found == {f"{span} stands more than once in the sink" for span in where}

    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"DELETE FROM {table} WHERE name = 'double'")
    assert vectors(sandbox) == 4
    assert deep(sandbox, balanced=True)["tables"]["sink"]["rows"] == 12
    now = datetime.now(UTC)
    interval = ((now - timedelta(hours=1)).isoformat(), now.isoformat())
    assert "has deletion vectors" in sandbox.run("anew", interval=interval, expect=10).message
    assert deep(sandbox, balanced=True)["tables"]["sink"]["rows"] == 12

    spark.sql(f"DELETE FROM {table} WHERE `_offset` = 5")
    missing = {f"{sandbox.topic}-{partition} [5, 6)" for partition in (0, 1)}
    told = deep(sandbox, balanced=False)["problems"]
    assert {problem.split(" is missing")[0] for problem in told if " is missing" in problem} == missing


def vectors(sandbox: Sandbox) -> int:
    """How many rows deletion vectors take away."""
    table = DeltaTable(str(sandbox.home / "table"))
    return sum(v.count(False) for batch in table.deletion_vectors() for v in batch["selection_vector"].to_pylist())
