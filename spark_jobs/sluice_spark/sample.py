"""What a pipeline's rows will look like, found out with no record."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sluice.spec import Pipeline
from sluice_spark import transform as transforms
from sluice_spark.decode import decode, source_columns

__all__ = ["sink_schema"]

_RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP"


def sink_schema(spark: SparkSession, pipeline: Pipeline, transform: transforms.Transformer) -> StructType:
    """Return the columns of the sink's rows, after checking what the transform makes of an empty batch.

    Raises
    ------
    ConfigError
        When it does not analyse, or does not keep what it must keep.
    """
    empty = spark.createDataFrame([], _RECORDS)
    out = transforms.check(pipeline, transform, source_columns(decode(empty, pipeline.decode)))
    return out.schema.add("_run", "string")
