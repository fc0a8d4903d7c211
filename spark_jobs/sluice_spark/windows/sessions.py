"""Which records a session has, from all records of many batches at once: for audits and intervals.

A session is written by the first batch whose watermark reaches its end, and what comes later begins a new one. So the
batches have a say in it, and yet they need not be read one after another:

- A record that is not late ends, alone, behind the watermark before its batch. If it came after a session was written,
  that watermark had reached the session's end. So its time is later than all times of that session: sessions of a key
  follow on each other in the order of time, and only where one ends is to be found.
- Record q finds the session of an earlier one p (by time) if q comes within the gap of p, and if p's own end is behind
  the watermark before q's batch, so that the session is still open. Both say how far back in time q reaches: to its
  time less the gap, and no further than the watermark less the gap. This also holds if p came in a later batch than q:
  p is not late, so q's session, which ends after p's own end, was open for it.
- So a session ends with p if no later record reaches p: if the least time that they reach is later. That is a running
  minimum.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Ordered
from pyspark.sql import functions as F

from sluice.pipeline.window import Window
from sluice_spark.columns import column

__all__ = ["in_sessions", "in_whole_sessions"]

_SESSION = "__sluice_session"
_REACH, _ENDS = "__sluice_reach", "__sluice_ends"


def in_sessions(rows: DataFrame, window: Window, apart: Sequence[str], watermark: Column, name: str) -> DataFrame:
    """Return the rows that were not late, with the number of the session that each belongs to, among those of its key.

    Parameters
    ----------
    rows
        The transform's rows, of any number of batches.
    apart
        Columns beside ``window.by`` whose values have sessions of their own.
    watermark
        That of the batch before, of each row, in milliseconds since 1970; in later batches it is not less.
    name
        The column with the number.

    Notes
    -----
    The rows of a key are sorted in one task, which spills to disk; nothing else is kept of them.
    """
    time, passed = F.unix_micros(column(window.time)), watermark * 1000
    timely = rows.where(time + _gap(window) > passed)
    return _numbered(timely, window, apart, F.greatest(time, passed + 1) - _gap(window), name)


def in_whole_sessions(rows: DataFrame, window: Window, apart: Sequence[str], first: str, last: str) -> DataFrame:
    """Return the rows, each with begin and end of the session that it belongs to if no record is late.

    Parameters
    ----------
    rows, apart
        As for :func:`in_sessions`.
    first, last
        The columns with begin and end, in microseconds since 1970.
    """
    time, gap = F.unix_micros(column(window.time)), _gap(window)
    numbered = _numbered(rows, window, apart, time - gap, _SESSION)
    whole = Ordered.partitionBy(*map(column, [*apart, *window.by]), _SESSION)
    bounds = numbered.withColumn(first, F.min(time).over(whole)).withColumn(last, F.max(time).over(whole) + gap)
    return bounds.drop(_SESSION)


def _numbered(rows: DataFrame, window: Window, apart: Sequence[str], reach: Column, name: str) -> DataFrame:
    """Return the rows with the number of their session, by how far back in time each reaches."""
    time, reaching = F.unix_micros(column(window.time)), rows.withColumn(_REACH, reach)
    from_last = Ordered.partitionBy(*map(column, [*apart, *window.by])).orderBy(time.desc())
    later = from_last.rowsBetween(Ordered.unboundedPreceding, -1)
    so_far = from_last.rowsBetween(Ordered.unboundedPreceding, Ordered.currentRow)
    # of two records of one time, the second always has the first one's reach before it, and so does not end a session
    ends = reaching.withColumn(_ENDS, F.coalesce(F.min(_REACH).over(later) > time, F.lit(True)))
    return ends.withColumn(name, F.count_if(F.col(_ENDS)).over(so_far)).drop(_REACH, _ENDS)


def _gap(window: Window) -> Column:
    return F.lit(round(window.length.total_seconds() * 1_000_000))
