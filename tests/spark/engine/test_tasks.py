"""Lines about Spark's tasks come from a real stage."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import SparkSession

from sluice_spark.engine import tasks
from sluice_spark.engine.logs import logger

pytestmark = pytest.mark.spark


def test_spark_stage_that_takes_long_is_logged(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(tasks, "_LOOK", 0.001)
    monkeypatch.setattr(tasks, "_EVERY", 0.0)
    caplog.set_level(logging.INFO, logger.name)
    for _ in range(50):  # how long a stage takes is the machine's
        with tasks.watched(spark, "batch 3"):
            spark.range(0, 2_000_000, 1, 30).selectExpr("max(sha2(cast(id AS STRING), 512))").collect()
        if lines := [line for line in caplog.messages if " of 30 tasks are done (" in line]:
            break
    assert lines[0].startswith("batch 3: ")
