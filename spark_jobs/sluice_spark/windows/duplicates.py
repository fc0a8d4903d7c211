"""Drops duplicates by event time, and checks that this can be done."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.pipeline import Pipeline
from sluice.pipeline.dedupe import Dedupe
from sluice_spark.columns import column
from sluice_spark.windows.checks import refuse_across, refuse_columns, refuse_unequal, timed
from sluice_spark.windows.watermark import with_watermark

__all__ = ["KEYLESS", "check", "firsts", "late", "strange", "timely"]

KEYLESS = "dedupe_key_missing"
"""The rule by which a record without one of the keys goes to the quarantine: NULL is no key that two records share."""


def strange(dedupe: Dedupe, now: Column) -> Column:
    """Return the rule that a row breaks; null where it breaks none. ``now`` is when the batch was planned."""
    keyless = F.lit(False)
    for name in dedupe.keys:
        keyless = keyless | column(name).isNull()
    return F.when(keyless, F.lit(KEYLESS)).otherwise(timed(dedupe.time, dedupe.ahead, now))


def timely(rows: DataFrame, dedupe: Dedupe, held_to: int | None = None) -> DataFrame:
    """Return the rows with their watermark; ``held_to`` as for :func:`with_watermark`."""
    return with_watermark(rows, dedupe.time, dedupe.within, held_to)


def firsts(rows: DataFrame, dedupe: Dedupe) -> DataFrame:
    """Return the rows that are neither late nor duplicates, from the result of :func:`timely`."""
    return rows.dropDuplicatesWithinWatermark(list(dedupe.keys))


def late(dedupe: Dedupe, watermark: int) -> Column:
    """Return whether a row is late: Spark's own rule. The watermark is that of the batch before, in milliseconds."""
    return F.unix_micros(column(dedupe.time)) <= F.lit(watermark * 1000)


def check(pipeline: Pipeline, dedupe: Dedupe, rows: DataFrame) -> DataFrame:
    """Check that duplicates of the transform's rows can be dropped; return them.

    Parameters
    ----------
    rows
        The transform's result for an empty batch.

    Raises
    ------
    ConfigError
        If a column is missing or has a type that cannot be compared, or the transform combines rows.
    """
    refuse_columns(pipeline, "dedupe", dedupe.time, {"keys": dedupe.keys}, rows)
    refuse_unequal(pipeline, "dedupe.keys", dedupe.keys, rows)
    refuse_across(pipeline, rows, "dedupe")
    return rows
