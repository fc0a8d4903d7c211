"""What a pipeline's rows will look like, found out with no record."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sluice.pipeline import Pipeline, Rows
from sluice_spark.decoders.base import decode, source_columns
from sluice_spark.transforms import transform as transforms

__all__ = ["Shape", "shape_of"]

_RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP"


@dataclass(frozen=True)
class Shape:
    """What is known of a pipeline's rows before there is one.

    Attributes
    ----------
    schema
        Their columns.
    opaque
        Whether Spark's plan does not show that the transform leaves the metadata columns as they are.
    """

    schema: StructType
    opaque: bool


def shape_of(spark: SparkSession, pipeline: Pipeline, transform: transforms.Transformer) -> Shape:
    """Check what the transform makes of an empty batch; return what the sink's rows will be.

    Raises
    ------
    ConfigError
        When it does not analyse, or does not keep what it must keep.
    """
    sample = source_columns(decode(spark.createDataFrame([], _RECORDS), pipeline.decode))
    out = transforms.check(pipeline, transform, sample)
    opaque = pipeline.rows is not Rows.AGGREGATE and not transforms.hands_through(sample, out)
    return Shape(out.schema.add("_run", "string"), opaque)
