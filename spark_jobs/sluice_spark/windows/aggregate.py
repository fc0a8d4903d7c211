"""Aggregates rows by windows of event time, or by their groups alone, and checks that this can be done."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, LongType, StructType

from sluice.pipeline import Pipeline
from sluice.pipeline.aggregate import Aggregate
from sluice.pipeline.window import END, START, Window
from sluice_spark.columns import column
from sluice_spark.windows.checks import analyzed, refuse_across, refuse_columns, timed, wrong
from sluice_spark.windows.watermark import seconds, with_watermark

__all__ = ["OVERFLOW", "blamed", "check", "check_groups", "groups_of", "overflowing", "strange", "windows_of"]

OVERFLOW = "aggregate_overflow"
"""The rule by which a record goes to the quarantine whose number a sum of its window might not hold."""

_WINDOW = "__sluice_window"
_SUMMED = re.compile(r"\b(sum|avg|mean)\s*\(\s*`?(\w+)`?\s*\)", re.IGNORECASE)
_FEW_WHOLE = 2**53
"""A BIGINT holds the sum of a thousand numbers of this size."""
_FEW_DIGITS = 35
"""A DECIMAL of 38 digits holds the sum of a thousand numbers with so many."""
_DISTINCT = re.compile(r"\b\w+\(distinct ", re.IGNORECASE)


def strange(window: Window, now: Column, taken: StructType) -> Column:
    """Return the rule that a row breaks; null where it breaks none: :func:`timed`, and :data:`OVERFLOW`."""
    return F.coalesce(timed(window.time, window.ahead, now), overflowing(window.aggregates, taken))


def overflowing(aggregates: Mapping[str, str], taken: StructType) -> Column:
    """Return :data:`OVERFLOW` for a row with a number that a sum might not hold; null for others."""
    large = list(_large(aggregates, taken).values())
    return F.coalesce(*(F.when(is_large, F.lit(OVERFLOW)) for is_large in large), F.lit(None).cast("string"))


def blamed(of: Window | Aggregate, rule: Column, taken: StructType) -> Column:
    """Return the column by which a row breaks a rule."""
    found = F.lit(of.time)
    for name, is_large in _large(of.aggregates, taken).items():
        found = F.when((rule == OVERFLOW) & is_large, F.lit(name)).otherwise(found)
    return found


def _large(aggregates: Mapping[str, str], taken: StructType) -> dict[str, Column]:
    """Return, for each column that is summed, whether a number is so large that few such ones overflow the sum.

    Spark ends the query then, and every run after it: one record would stop the pipeline.
    """
    kinds = {f.name.lower(): f for f in taken.fields}
    found: dict[str, Column] = {}
    for text in aggregates.values():
        for function, name in _SUMMED.findall(text):
            field = kinds.get(name.lower())
            kind = None if field is None else field.dataType
            if isinstance(kind, LongType) and function.lower() == "sum":  # the mean is made of doubles
                limit = Decimal(_FEW_WHOLE)
            elif isinstance(kind, DecimalType) and kind.precision > _FEW_DIGITS:
                limit = Decimal(10) ** (_FEW_DIGITS - kind.scale)
            else:
                continue
            assert field is not None
            value = column(field.name)
            found[field.name] = (value > F.lit(limit)) | (value < F.lit(-limit))
    return found


def windows_of(rows: DataFrame, window: Window, held_to: int | None = None) -> DataFrame:
    """Return a row for each window and key. For a stream, only windows that the watermark has passed, each once.

    Parameters
    ----------
    rows
        The transform's rows, without those that are :func:`strange`.
    held_to
        As for :func:`~sluice_spark.windows.watermark.with_watermark`.
    """
    time = column(window.time)
    if window.gap is not None:
        span = F.session_window(time, seconds(window.gap))
    else:
        span = F.window(time, seconds(window.length), seconds(window.step) if window.slide else None)
    # with output: complete nothing is ever closed, and a watermark would only be printed
    timely = rows
    if window.output != "complete":
        timely = with_watermark(rows, window.time, window.delay, held_to)
    grouped = timely.groupBy(span.alias(_WINDOW), *map(column, window.by))
    found = grouped.agg(*(F.expr(text).alias(name) for name, text in window.aggregates.items()))
    bounds = F.col(_WINDOW)["start"].alias(START), F.col(_WINDOW)["end"].alias(END)
    return found.select(*bounds, *map(column, [*window.by, *window.aggregates]))


def groups_of(rows: DataFrame, aggregate: Aggregate) -> DataFrame:
    """Return a row for each group of all rows. For a stream, those that ``output`` says."""
    grouped = rows.groupBy(*map(column, aggregate.by))
    return grouped.agg(*(F.expr(text).alias(name) for name, text in aggregate.aggregates.items()))


def check_groups(pipeline: Pipeline, aggregate: Aggregate, rows: DataFrame) -> DataFrame:
    """Aggregate an empty batch and check that it can be done, as :func:`check` does."""
    refuse_columns(pipeline, "aggregate", None, {"by": aggregate.by}, rows)
    refuse_across(pipeline, rows, "an aggregate")
    return _checked(pipeline, "aggregate", lambda: groups_of(rows, aggregate))


def check(pipeline: Pipeline, window: Window, rows: DataFrame) -> DataFrame:
    """Aggregate an empty batch and check that it can be done; return the result (also empty).

    Parameters
    ----------
    rows
        The transform's result for an empty batch.

    Raises
    ------
    ConfigError
        If a column is missing or has a wrong type, an aggregate is none, or the transform combines rows.
    """
    refuse_columns(pipeline, "window", window.time, {"by": window.by}, rows)
    refuse_across(pipeline, rows, "a window")
    return _checked(pipeline, "window", lambda: windows_of(rows, window))


def _checked(pipeline: Pipeline, key: str, make: Callable[[], DataFrame]) -> DataFrame:
    try:
        made = make()
    except PySparkException as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise wrong(pipeline, f"{key}.aggregates: {first}") from error
    if _DISTINCT.search(analyzed(made)):
        raise wrong(
            pipeline,
            f"{key}.aggregates: Spark cannot keep distinct values from run to run: write approx_count_distinct(…), or "
            "size(collect_set(…))",
        )
    return made
