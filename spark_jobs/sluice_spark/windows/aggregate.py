"""Aggregates rows by windows of event time, and checks that this can be done."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.pipeline import Pipeline
from sluice.pipeline.window import END, START, Window
from sluice_spark.columns import column
from sluice_spark.windows.checks import analyzed, refuse_across, refuse_columns, timed, wrong
from sluice_spark.windows.watermark import seconds, with_watermark

__all__ = ["check", "strange", "windows_of"]

_WINDOW = "__sluice_window"
_DISTINCT = re.compile(r"\b\w+\(distinct ", re.IGNORECASE)


def strange(window: Window, now: Column) -> Column:
    """Return the rule that a row's event time breaks; null where it breaks none: :func:`timed`."""
    return timed(window.time, window.ahead, now)


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
    try:
        made = windows_of(rows, window)
    except PySparkException as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise wrong(pipeline, f"window.aggregates: {first}") from error
    if _DISTINCT.search(analyzed(made)):
        raise wrong(
            pipeline,
            "window.aggregates: Spark cannot keep distinct values of open windows: write approx_count_distinct(…), or "
            "size(collect_set(…))",
        )
    return made
