"""The windows of an interval, made again from all of their records, apart from the windows that live runs keep open."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.pipeline.window import START
from sluice.run.checkpoint import Clock
from sluice_spark.batch.stateful import Seen, dropped
from sluice_spark.batch.windowed import WindowWriter
from sluice_spark.batch.writer import PreparedBatch
from sluice_spark.windows.aggregate import windows_of
from sluice_spark.windows.late import inside

__all__ = ["RecomputedWindows"]


@dataclass(frozen=True)
class RecomputedWindows(WindowWriter):
    """Prepares the windows that begin in a span of event time. No record is late for them.

    Parameters
    ----------
    span
        Milliseconds since 1970, from the first until before the second.
    closed
        All windows up to there are closed, in milliseconds since 1970.
    """

    span: tuple[int, int] = (0, 0)
    closed: int = 0

    @classmethod
    def of(cls, writer: WindowWriter, span: tuple[int, int], closed: int, now: int) -> Self:
        """Return the writer of a span's windows, from that of live batches.

        Parameters
        ----------
        now
            Milliseconds since 1970: what is ahead of time is measured against it.
        """
        same = {f.name: getattr(writer, f.name) for f in fields(WindowWriter)}
        return cls(**same | {"clock": Clock(late=0, closing=0, now=now), "span": span, "closed": closed})

    def let_in(self, records: DataFrame) -> DataFrame:
        """Return the windows of these records: those of the ranges, without the parts that are not read."""
        start, end = (F.timestamp_millis(F.lit(time)) for time in self.span)
        return windows_of(self.absorbed(records), self.window).where((F.col(START) >= start) & (F.col(START) < end))

    def absorbed(self, records: DataFrame) -> DataFrame:
        """Return the rows that belong to one of the windows."""
        return self.sound(self.transformed(self.decoded(records))).where(self._inside_span())

    def late(self) -> Column:
        """Return whether a row belongs to none of the windows; it counts as filtered."""
        return ~self._inside_span()

    def partly_late(self) -> Column:
        """Return false: no row is late."""
        return F.lit(False)

    def former(self) -> Column:
        """Return false: the windows are made again as a whole."""
        return F.lit(False)

    def account(self, prepared: PreparedBatch, seen: Seen) -> PreparedBatch:
        """Count the records of other windows as filtered."""
        told = {
            "rows": prepared.staged.rows,
            "late": [],
            "partly_late": 0,
            "latest": None,
            "late_by": 0,
            "closed_to": self.closed,
            # an audit makes them once more
            "aggregation": self.pipeline.aggregation,
            "ranges": [a.range.as_list() for a in prepared.accounts],
        }
        accounts = tuple(dropped(prepared.accounts, seen.late))
        return replace(prepared, accounts=accounts, outside=sum(seen.late.values()), windows=told)

    def _inside_span(self) -> Column:
        return inside(self.window, *self.span)
