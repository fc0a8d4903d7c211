"""The table of refused records: verbatim, with what was wrong."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sluice_spark.decode import COLUMN, RULE

__all__ = ["SCHEMA", "refused_records"]

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField("_topic", StringType()),
        StructField("_partition", IntegerType()),
        StructField("_offset", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField("_run", StringType()),
        StructField(
            "_errors", ArrayType(StructType([StructField(n, StringType()) for n in ("rule", "severity", "column")]))
        ),
    ]
)
"""The columns of every quarantine table."""


def refused_records(decoded: DataFrame, run: str) -> DataFrame:
    """Return the records that broke a rule, in the columns of :data:`SCHEMA`."""
    error = F.struct(F.col(RULE).alias("rule"), F.lit("critical").alias("severity"), F.col(COLUMN).alias("column"))
    return decoded.where(F.col(RULE).isNotNull()).select(
        "key",
        "value",
        "headers",
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.lit(run).alias("_run"),
        F.array(error).alias("_errors"),
    )
