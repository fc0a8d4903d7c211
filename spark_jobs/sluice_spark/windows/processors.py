"""Gives rows to a ``StatefulProcessor`` of the user's, and checks that this can be done."""

from __future__ import annotations

import importlib

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from sluice.errors import described
from sluice.pipeline import Pipeline
from sluice.pipeline.processor import Processor
from sluice_spark.columns import column
from sluice_spark.windows.checks import refuse_across, refuse_columns, refuse_unequal, wrong
from sluice_spark.windows.processor_rows import Watched
from sluice_spark.windows.watermark import with_watermark

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
        told = described(error)
        raise wrong(pipeline, f"processor.python: {processor.python}, called without arguments: {told}") from error
    if not isinstance(made, StatefulProcessor):
        raise wrong(
            pipeline,
            f"processor.python: {processor.python} makes a {type(made).__name__}, not a "
            "pyspark.sql.streaming.StatefulProcessor",
        )
    return made


def processed(rows: DataFrame, processor: Processor, made: StatefulProcessor, held_to: int | None = None) -> DataFrame:
    """Return what a processor yields.

    Parameters
    ----------
    rows
        The transform's rows, without those whose event time is strange.
    held_to
        As for :func:`~sluice_spark.windows.watermark.with_watermark`.
    """
    timely = with_watermark(rows, processor.time, processor.watermark, held_to)
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
    refuse_columns(pipeline, "processor", processor.time, {"by": processor.by}, rows)
    refuse_unequal(pipeline, "processor.by", processor.by, rows)
    refuse_across(pipeline, rows, "a processor")
    made = processor_of(pipeline, processor)
    try:
        return processed(rows, processor, made)
    except PySparkException as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise wrong(pipeline, f"processor: {first}") from error
