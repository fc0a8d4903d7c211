"""The windows of an interval, made again from all of their records, apart from the windows that live runs keep open."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.facts import Windows
from sluice.pipeline.window import END, START
from sluice.run.checkpoint import Clock
from sluice_spark.batch.stateful import BROKEN, Seen, dropped
from sluice_spark.batch.windows import WindowWriter
from sluice_spark.batch.writer import PreparedBatch
from sluice_spark.columns import column
from sluice_spark.sinks.base import RowsRefusedError, Staged
from sluice_spark.windows.aggregate import windows_of
from sluice_spark.windows.late import all_inside, inside
from sluice_spark.windows.sessions import in_whole_sessions

__all__ = ["TORN", "RecomputedSessions", "RecomputedWindows"]

TORN = "__sluice_torn"
"""See :meth:`RecomputedSessions.replaced`."""
_FIRST, _LAST, _SOUND, _NEAR, _ALONE, _GONE = (
    f"__sluice_{name}" for name in ("first", "last", "sound", "near", "alone", "gone")
)


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

    def without(self, error: RowsRefusedError, staged: Staged) -> Self:
        """Raise the error unchanged. An interval keeps no state: add a row rule, and run the interval again."""
        raise error

    def to_rows(self, records: DataFrame) -> DataFrame:
        """Return the windows of these records: those of the ranges, without the parts that are not read."""
        start, end = (F.timestamp_millis(F.lit(time)) for time in self.span)
        return windows_of(self.absorbed(records), self.window).where((F.col(START) >= start) & (F.col(START) < end))

    def absorbed(self, records: DataFrame) -> DataFrame:
        """Return the rows that belong to one of the windows."""
        return self.sound(self.transformed(self.decoded(records))).where(self._inside_span())

    def held_whole(self) -> Column:
        """Return whether a row that belongs to one of the windows belongs to no others."""
        return all_inside(self.window, *self.span)

    def late(self) -> Column:
        """Return whether a row belongs to none of the windows; it counts as filtered."""
        return ~self._inside_span()

    def unclocked(self) -> Column:
        """Return false: there is no watermark."""
        return F.lit(False)

    def partly_late(self) -> Column:
        """Return false: no row is late."""
        return F.lit(False)

    def former(self) -> Column:
        """Return false: the windows are made again as a whole."""
        return F.lit(False)

    def account(self, prepared: PreparedBatch, seen: Seen) -> PreparedBatch:
        """Count the records of other windows as filtered."""
        fact = Windows(
            rows=prepared.staged.rows,
            late=[],
            partly_late=0,
            latest=None,
            late_by=0,
            closed_to=self.closed,
            # an audit makes them once more
            aggregation=self.pipeline.aggregation,
            ranges=[a.range.as_list() for a in prepared.accounts],
        )
        accounts = tuple(dropped(prepared.accounts, seen.late))
        return replace(prepared, accounts=accounts, outside=sum(seen.late.values())).having(fact)

    def _inside_span(self) -> Column:
        return inside(self.window, *self.span)


@dataclass(frozen=True)
class RecomputedSessions(RecomputedWindows):
    """Prepares the sessions that begin in a span of event time, and are closed. No record is late for them.

    A record in the span may belong to a session that begins before it. Who belongs to such a one has a record of it
    within the gap before the span; so all records since then are put into sessions, and no others.

    Parameters
    ----------
    until
        Where the interval ends, in milliseconds since 1970; the span may end earlier.
    """

    until: int = 0

    def to_rows(self, records: DataFrame) -> DataFrame:
        """Return the sessions of these records: those of the ranges, without the parts that are not read."""
        window = self.window
        grouped = self.absorbed(records).groupBy(_FIRST, _LAST, *map(column, window.by))
        found = grouped.agg(*(F.expr(text).alias(name) for name, text in window.aggregates.items()))
        bounds = F.timestamp_micros(_FIRST).alias(START), F.timestamp_micros(_LAST).alias(END)
        return found.select(*bounds, *map(column, [*window.by, *window.aggregates]))

    def held_whole(self) -> Column:
        """Return true: a row belongs to one session."""
        return F.lit(True)

    def absorbed(self, records: DataFrame) -> DataFrame:
        """Return the rows that belong to one of the sessions."""
        return self._near(records).where(self._inside_span())

    def replaced(self, records: DataFrame, held: DataFrame) -> DataFrame:
        """Return which rows of the table are parts of these sessions, or have no record any more: bounds and keys.

        Rows that begin in the span and are parts of a session that begins before it are not among them, nor are those
        of a session that is still open.

        Parameters
        ----------
        records
            As for :meth:`to_rows`.
        held
            The table's rows.

        Returns
        -------
        DataFrame
            The column :data:`TORN` says of a row that other sessions have its records now, and not all of these are
            replaced with it: it cannot leave, or cannot stay. None is torn as long as the same records make sessions by
            the same definition.
        """
        by, (begin, until, closed) = self.window.by, self._micros
        names = [f"{_SOUND}_{n}" for n in range(len(by))]
        whole = self._near(records).select(
            _FIRST, _LAST, *(column(name).alias(own) for name, own in zip(by, names, strict=True))
        ).distinct()  # fmt: skip
        start, end = F.unix_micros(F.col(START)), F.unix_micros(F.col(END))
        # a table from before a column was added has NULL in it
        known = {name.lower() for name in held.columns}
        keys = [
            column(name) if name.lower() in known else F.lit(None).cast(self.schema[name].dataType).alias(name)
            for name in by
        ]
        there = held.where((end > begin) & (start < closed) & (end <= closed)).select(START, END, *keys)
        same = [column(name).eqNullSafe(F.col(own)) for name, own in zip(by, names, strict=True)]
        # of a session that began earlier, only the last records are known
        inside = [F.greatest(start, F.lit(begin)) >= F.col(_FIRST), end <= F.col(_LAST)]
        early = (start >= begin) | (F.col(_FIRST) < begin)
        covered = there.join(whole, [*same, *inside, early], "left")
        alone = F.col(_FIRST).isNull()
        own = covered.select(
            START, END, *map(column, by), alone.alias(_ALONE),
            F.when(start < begin, alone).when(alone, start < until).otherwise(self._inside_span()).alias(_GONE),
        ).where(_GONE)  # fmt: skip
        torn = F.col(_ALONE) & ((start < begin) | (end > self.until * 1000))
        own = own.withColumn(TORN, torn)
        overlapping = [*same, F.col(_FIRST) < end, F.col(_LAST) > start]
        others = whole.where(~self._inside_span())
        shared = own.where(F.col(_ALONE) & ~F.col(TORN)).join(others, overlapping, "left_semi")
        columns = [START, END, *map(column, by), TORN]
        return own.select(*columns).unionAll(shared.withColumn(TORN, F.lit(True)).select(*columns))

    def last(self, records: DataFrame) -> int | None:
        """Return the last end of any of the sessions, in microseconds since 1970; None if there is none."""
        row = self.absorbed(records).agg(F.max(_LAST)).first()
        return None if row is None else row[0]

    def _near(self, records: DataFrame) -> DataFrame:
        told = super()._told(self.transformed(self.decoded(records)))
        near = told.where(F.col(BROKEN).isNull() & self._is_near()).drop(BROKEN)
        return in_whole_sessions(near, self.window, [], _FIRST, _LAST)

    def _told(self, rows: DataFrame) -> DataFrame:
        told = super()._told(rows)
        marked = told.withColumn(_SOUND, F.col(BROKEN).isNull()).withColumn(
            _NEAR, F.coalesce(F.col(_SOUND) & self._is_near(), F.lit(False))
        )
        found = in_whole_sessions(marked, self.window, [_NEAR], _FIRST, _LAST)
        return found.drop(_SOUND)

    def _is_near(self) -> Column:
        gap = round(self.window.length.total_seconds() * 1_000_000)
        return F.unix_micros(column(self.window.time)) >= F.lit(self._micros[0] - gap)

    def _inside_span(self) -> Column:
        start, end, closed = self._micros
        return (F.col(_FIRST) >= start) & (F.col(_FIRST) < end) & (F.col(_LAST) <= closed)

    def late(self) -> Column:
        """Return whether a row belongs to none of the sessions; it counts as filtered."""
        return ~(F.col(_NEAR) & self._inside_span())

    @property
    def _micros(self) -> tuple[int, int, int]:
        return self.span[0] * 1000, self.span[1] * 1000, self.closed * 1000
