"""Drops duplicates by event time, and checks that this can be done."""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline
from sluice.pipeline.dedupe import Dedupe
from sluice.pipeline.suite import nearest
from sluice_spark.columns import column
from sluice_spark.windows.aggregate import refuse_across, seconds, timed, wrong

__all__ = ["KEYLESS", "UNEQUAL", "check", "firsts", "late", "strange", "timely"]

KEYLESS = "dedupe_key_missing"
"""The rule by which a record without one of the keys goes to the quarantine: NULL is no key that two records share."""

UNEQUAL = re.compile(r"\b(float|double|map|variant|collate|geometry|geography)\b", re.IGNORECASE)
"""Types whose equal values may differ in their bytes, by which state compares keys, or that it cannot compare."""


def strange(dedupe: Dedupe, now: Column) -> Column:
    """Return the rule that a row breaks; null where it breaks none. ``now`` is when the batch was planned."""
    keyless = F.lit(False)
    for name in dedupe.keys:
        keyless = keyless | column(name).isNull()
    return F.when(keyless, F.lit(KEYLESS)).otherwise(timed(dedupe.time, dedupe.ahead, now))


def timely(rows: DataFrame, dedupe: Dedupe) -> DataFrame:
    """Return the rows with their watermark."""
    return rows.withWatermark(dedupe.time, seconds(dedupe.within))


def firsts(rows: DataFrame, dedupe: Dedupe) -> DataFrame:
    """Return the rows that are neither late nor duplicates, from the result of :func:`timely`."""
    return rows.dropDuplicatesWithinWatermark(list(dedupe.keys))


def late(dedupe: Dedupe, watermark: int) -> Column:
    """Return whether a row is late: Spark's own rule. The watermark is that of the batch before, in milliseconds."""
    return F.unix_micros(column(dedupe.time)) <= F.lit(watermark * 1000)


def check(pipeline: Pipeline, dedupe: Dedupe, rows: DataFrame) -> None:
    """Check that duplicates of the transform's rows can be dropped.

    Parameters
    ----------
    rows
        The transform's result for an empty batch.

    Raises
    ------
    ConfigError
        If a column is missing or has a type that cannot be compared, or the transform combines rows.
    """
    for key, name in (("time", dedupe.time), *(("keys", name) for name in dedupe.keys)):
        if name not in rows.columns:
            hint = nearest(name, rows.columns, "its columns are")
            raise wrong(pipeline, f"dedupe.{key}: the transform's result has no column {name!r}; {hint}")
    kind = rows.schema[dedupe.time].dataType
    if not isinstance(kind, TimestampType):
        raise _type(pipeline, "time", dedupe.time, kind.simpleString(), "TIMESTAMP: convert it in the transform")
    for name in dedupe.keys:
        found = rows.schema[name].dataType.simpleString()
        if UNEQUAL.search(found):
            why = "a type whose equal values always have equal bytes: convert it in the transform, such as to STRING"
            raise _type(pipeline, "keys", name, found, why)
    refuse_across(pipeline, rows, "dedupe")


def _type(pipeline: Pipeline, key: str, name: str, found: str, wanted: str) -> ConfigError:
    return wrong(pipeline, f"dedupe.{key}: {name} is {found.upper()}, not {wanted}")
