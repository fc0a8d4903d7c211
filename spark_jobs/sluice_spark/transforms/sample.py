"""Finds the schema of a pipeline's rows without reading records."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sluice.kinds import imported, kind_of
from sluice.pipeline import Pipeline, Rows
from sluice_spark.decoders.base import decode, source_columns
from sluice_spark.rules import records as rules
from sluice_spark.transforms import transform as transforms

__all__ = ["Shape", "shape_of"]

_RECORDS = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, partition INT, "
    "offset LONG, timestamp TIMESTAMP"
)


@dataclass(frozen=True)
class Shape:
    """The shape of a pipeline's rows.

    Attributes
    ----------
    schema
        The columns of the sink's rows, including ``_run``.
    opaque
        True unless Spark's plan shows that the transform keeps the metadata columns unchanged.
    rows
        The columns of the transform's rows, of which windows are made.
    """

    schema: StructType
    opaque: bool
    rows: StructType


def shape_of(spark: SparkSession, pipeline: Pipeline, transform: transforms.Transformer) -> Shape:
    """Apply the transform to an empty batch and check it; return the shape of the sink's rows.

    Raises
    ------
    ConfigError
        If Spark cannot analyse the transform, the windows, dedupe or the processor, or columns are wrong.
    """
    sample = source_columns(decode(spark.createDataFrame([], _RECORDS), pipeline.decode))
    rules.check(sample, pipeline)
    out = transforms.check(pipeline, transform, sample)
    opaque = pipeline.rows is not Rows.AGGREGATE and not transforms.hands_through(sample, out)
    rows = out.schema
    if pipeline.stateful is not None:
        out = imported(kind_of("operators", pipeline.stateful.key).check)(pipeline, pipeline.stateful, out)
    return Shape(out.schema.add("_run", "string"), opaque, rows)
