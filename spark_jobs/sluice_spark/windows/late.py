"""Which records are late, and which belong to an interval's windows: Spark's rules, for single records.

Spark itself counts only parts of windows.

A record counts in no window whose end is at or before the watermark of the batch before. With sliding windows it may be
late for the earliest of its windows only; it is then absorbed by the others. For a session, the end counts that
it would have with this record alone.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.pipeline.window import Window
from sluice_spark.columns import column

__all__ = ["all_inside", "inside", "late", "partly_late"]


def late(window: Window, watermark: int) -> Column:
    """Return whether a row is late for all of its windows.

    Parameters
    ----------
    watermark
        That of the batch before, in milliseconds since 1970.
    """
    return _last_end(window) <= F.lit(watermark * 1000)


def partly_late(window: Window, watermark: int) -> Column:
    """Return whether a row is late for some of its windows, and not for all."""
    if window.gap is not None:
        return F.lit(False)
    size, step = _micros(window.length), _micros(window.step)
    time = F.unix_micros(column(window.time))
    # the first end after the event time: ends are at multiples of the slide, moved by the size
    first_end = time - F.pmod(time - F.lit(size), F.lit(step)) + F.lit(step)
    return (first_end <= F.lit(watermark * 1000)) & ~late(window, watermark)


def inside(window: Window, start: int, until: int) -> Column:
    """Return whether a row belongs to a window that begins in ``[start, until)``, in milliseconds since 1970."""
    step = _micros(window.step)
    earliest, latest = _starts(window)
    earliest = F.greatest(earliest, F.lit(-(-start * 1000 // step) * step))
    return (earliest <= latest) & (earliest < F.lit(until * 1000))


def all_inside(window: Window, start: int, until: int) -> Column:
    """Return whether all windows of a row begin in ``[start, until)``, in milliseconds since 1970."""
    earliest, latest = _starts(window)
    return (earliest >= F.lit(start * 1000)) & (latest < F.lit(until * 1000))


def _starts(window: Window) -> tuple[Column, Column]:
    """Return when the first and the last window of a row begin, in microseconds since 1970."""
    step, time = F.lit(_micros(window.step)), F.unix_micros(column(window.time))
    # at each multiple of the step that is less than the size before the row
    before = time - F.lit(_micros(window.length))
    return before - F.pmod(before, step) + step, time - F.pmod(time, step)


def _last_end(window: Window) -> Column:
    time, length = F.unix_micros(column(window.time)), F.lit(_micros(window.length))
    if window.gap is not None:
        return time + length  # of the session that the record would be alone
    return time - F.pmod(time, F.lit(_micros(window.step))) + length


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
