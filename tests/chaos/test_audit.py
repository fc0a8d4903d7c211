"""The deep audit agrees with real runs, and names each later change of their tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from tests.chaos.commands import deep, delta, drain
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.long
def test_deep_audit_sees_a_table_as_spark_does(sandbox: Sandbox, spark: SparkSession) -> None:
    drain(sandbox, 12, "r")
    table = f"delta.`{sandbox.home}/table`"
    names = {column: f"`{column}`" for column in spark.sql(f"SELECT * FROM {table}").columns} | {"name": "'double'"}
    spark.sql(f"INSERT INTO {table} SELECT {', '.join(names.values())} FROM {table} WHERE `_offset` IN (3, 4)")
    where = {f"{sandbox.topic}-{partition} [3, 5)" for partition in (0, 1)}
    found = set(deep(sandbox, balanced=False)["problems"])
    assert {problem.partition(" stands more than once")[0] for problem in found} == where

    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"DELETE FROM {table} WHERE name = 'double'")
    assert vectors(sandbox) == 4
    assert deep(sandbox)["tables"]["sink"]["rows"] == 12
    now = datetime.now(UTC)
    interval = ((now - timedelta(hours=1)).isoformat(), now.isoformat())
    assert "deletion vectors" in sandbox.run("again", interval=interval, expect=10).message
    assert deep(sandbox)["tables"]["sink"]["rows"] == 12

    spark.sql(f"DELETE FROM {table} WHERE `_offset` = 5")
    missing = {f"{sandbox.topic}-{partition} [5, 6)" for partition in (0, 1)}
    problems = deep(sandbox, balanced=False)["problems"]
    assert {problem.split(" is missing")[0] for problem in problems if " is missing" in problem} == missing


def vectors(sandbox: Sandbox) -> int:
    """How many rows deletion vectors take away."""
    batches = delta(sandbox).deletion_vectors()
    return sum(vector.count(False) for batch in batches for vector in batch["selection_vector"].to_pylist())
