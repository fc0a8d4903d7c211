"""Spark's settings in a pipeline file are checked before a run."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sluice_spark.engine.settings import wrong_settings

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("spark.sql.shuffle.partitions", "16", None),
        ("spark.sql.shuffle.partitions", "many", "spark.sql.shuffle.partitions"),
        ("spark.sql.ansi.enabled", "yes, please", "spark.sql.ansi.enabled"),
        ("spark.sql.shufle.partitions", "16", "spark.sql.shuffle.partitions"),
        ("spark.sql.warehouse.dir", "/x", None),  # known, and for an application's start
        ("spark.sql.catalog.elsewhere.uri", "http://x", None),  # another package's
        ("spark.executor.memoryOverhead", "much", None),  # Spark has no list of these
    ],
)
def test_spark_settings_that_spark_would_refuse_are_found(
    spark: SparkSession, key: str, value: str, named: str | None
) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    found = list(wrong_settings(spark, {key: value}))
    assert len(found) == (named is not None), found
    assert all(f"spark.conf: {key}" in text or f"no setting {key}" in text for text in found)
    assert named is None or named in found[0]
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
