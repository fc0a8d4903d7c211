"""A task for which Java runs out of stack fails, and the JVM lives."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.errors import SluiceError
from sluice_spark.engine.failures import classify
from sluice_spark.strategies.ignore import can_be_ignored

pytestmark = pytest.mark.spark


def test_transform_that_overflows_the_stack_is_reported_and_can_be_skipped(spark: SparkSession) -> None:
    # of a column: the driver itself would compute a constant
    long = spark.range(1).select(F.repeat(F.lit("a"), F.col("id").cast("int") + 200_000).alias("text"))
    with pytest.raises(Exception, match="StackOverflowError") as raised:
        long.where(F.col("text").rlike("^(a|b)*$")).write.format("noop").mode("overwrite").save()
    found = classify(raised.value, lambda: None)
    assert type(found) is SluiceError
    assert can_be_ignored(found)
    assert "-Xss" in found.next_step
    assert spark.range(3).count() == 3, "the session lives"
