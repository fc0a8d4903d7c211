"""Spark's settings in a pipeline file: what Spark would refuse, or would not see, is told before a run."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sluice_spark.engine.settings import wrong_settings

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("spark.sql.shuffle.partitions", "16", None),
        ("spark.sql.shuffle.partitions", "many", "spark.sql.shuffle.partitions"),
        ("spark.sql.ansi.enabled", "yes, please", "spark.sql.ansi.enabled"),
        ("spark.sql.shufle.partitions", "16", "did you mean spark.sql.shuffle.partitions?"),
        ("spark.sql.warehouse.dir", "/x", None),  # known, and for an application's start
        ("spark.sql.catalog.elsewhere.uri", "http://x", None),  # another package's
        ("spark.executor.memoryOverhead", "much", None),  # Spark has no list of these
    ],
)
def test_what_spark_knows_of_a_setting_is_asked(spark: SparkSession, key: str, value: str, told: str | None) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    found = list(wrong_settings(spark, {key: value}))
    assert len(found) == (told is not None), found
    assert all(f"spark.conf: {key}" in text or f"no setting {key}" in text for text in found)
    assert told is None or told in found[0]
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
