"""How many cores an application has."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["cores"]


def cores(spark: SparkSession) -> int:
    """Return the number of cores, over which work is divided; 4 over Spark Connect, which does not tell."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # there is no context to ask
        return 4
