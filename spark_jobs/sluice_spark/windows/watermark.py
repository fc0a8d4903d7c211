"""Gives rows the watermark by which Spark judges them late, closes windows and forgets keys."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice_spark.columns import column

__all__ = ["seconds", "with_watermark"]

_HELD = "__sluice_held"


def seconds(span: timedelta) -> str:
    """Return a duration as Spark writes an interval; never days, whose length depends on the time zone."""
    return f"{int(span.total_seconds())} seconds"


def with_watermark(rows: DataFrame, time: str, delay: timedelta, held_to: int | None) -> DataFrame:
    """Return the rows with a watermark on their event time.

    Parameters
    ----------
    time
        The column with the event time, a TIMESTAMP.
    held_to
        The watermark does not pass this time less the delay, whatever the rows have; in milliseconds since 1970. None
        if it follows them.
    """
    if held_to is None:
        return rows.withWatermark(time, seconds(delay))
    # Spark takes the greatest time that it sees in the column of the watermark. So that is another one, which ends at
    # the limit, and the event time gets its metadata: by that, Spark tells by which column it judges rows
    limit = F.timestamp_millis(F.lit(held_to))
    held = rows.withColumn(_HELD, F.least(column(time), limit)).withWatermark(_HELD, seconds(delay))
    marked = {**rows.schema[time].metadata, **held.schema[_HELD].metadata}
    return held.select(*(column(n).alias(n, metadata=marked) if n == time else column(n) for n in rows.columns))
