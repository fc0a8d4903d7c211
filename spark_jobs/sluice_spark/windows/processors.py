"""Gives rows to a ``StatefulProcessor`` of the user's, and checks that this can be done."""

from __future__ import annotations

import importlib

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType, TimestampType

from sluice.pipeline import Pipeline
from sluice.pipeline.processor import Processor
from sluice.pipeline.suite import nearest
from sluice_spark.columns import column
from sluice_spark.windows.aggregate import refuse_across, seconds, wrong
from sluice_spark.windows.duplicates import UNEQUAL
from sluice_spark.windows.yielded import Watched

__all__ = ["check", "late", "processed", "processor_of"]


def processor_of(pipeline: Pipeline, processor: Processor) -> StatefulProcessor:
    """Return an object of the class that the pipeline file names.

    Raises
    ------
    ConfigError
        If it cannot be imported, or is no ``StatefulProcessor`` that is made without arguments.
    """
    module, _, name = processor.python.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise wrong(pipeline, f"processor.python: {processor.python}, called without arguments: {told}") from error
    if not isinstance(made, StatefulProcessor):
        raise wrong(
            pipeline,
            f"processor.python: {processor.python} makes a {type(made).__name__}, not a "
            "pyspark.sql.streaming.StatefulProcessor",
        )
    return made


def processed(rows: DataFrame, processor: Processor, made: StatefulProcessor) -> DataFrame:
    """Return what a processor yields.

    Parameters
    ----------
    rows
        The transform's rows, without those whose event time is strange.
    """
    timely = rows.withWatermark(processor.time, seconds(processor.watermark))
    watched = Watched(made, StructType.fromDDL(processor.ddl))
    return timely.groupBy(*map(column, processor.by)).transformWithState(watched, processor.ddl, "append", "EventTime")


def late(processor: Processor, watermark: int) -> Column:
    """Return whether a row is late: Spark's own rule. The watermark is that of the batch before, in milliseconds."""
    return F.unix_micros(column(processor.time)) <= F.lit(watermark * 1000)


def check(pipeline: Pipeline, processor: Processor, rows: DataFrame) -> DataFrame:
    """Check that the processor can take the transform's rows; return what it yields for none.

    Parameters
    ----------
    rows
        The transform's result for an empty batch.

    Raises
    ------
    ConfigError
        If a column is missing or has a wrong type, the class is none, or the transform combines rows.
    """
    for key, name in (("time", processor.time), *(("by", name) for name in processor.by)):
        if name not in rows.columns:
            hint = nearest(name, rows.columns, "its columns are")
            raise wrong(pipeline, f"processor.{key}: the transform's result has no column {name!r}; {hint}")
    kind = rows.schema[processor.time].dataType
    if not isinstance(kind, TimestampType):
        raise wrong(
            pipeline,
            f"processor.time: {processor.time} is {kind.simpleString().upper()}, not TIMESTAMP: convert it in the "
            "transform",
        )
    for name in processor.by:
        found = rows.schema[name].dataType.simpleString()
        if UNEQUAL.search(found):
            raise wrong(
                pipeline,
                f"processor.by: {name} is {found.upper()}, not a type whose equal values always have equal bytes: "
                "convert it in the transform, such as to STRING",
            )
    refuse_across(pipeline, rows, "a processor")
    made = processor_of(pipeline, processor)
    try:
        return processed(rows, processor, made)
    except PySparkException as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise wrong(pipeline, f"processor: {first}") from error
