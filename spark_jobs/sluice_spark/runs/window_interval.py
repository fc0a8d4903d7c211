"""A run of an interval of event time: makes the windows that begin in it again, beside the live pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.errors import ConfigError, LeaseHeldError, OffsetsGoneError, SluiceError
from sluice.ledger import Lease
from sluice.pipeline.window import END, START
from sluice.ranges import OffsetRange, overlaps, runs_of
from sluice.run.interval import Interval
from sluice.sources.state import Key
from sluice.text import instant
from sluice_spark.batch.recomputed_windows import TORN, RecomputedSessions, RecomputedWindows
from sluice_spark.batch.windows import WindowWriter
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.runs.epoch_end import HANDOVER
from sluice_spark.runs.interval import IntervalBatch, IntervalRun, Leaving
from sluice_spark.runs.reconcile import half_done, take_over
from sluice_spark.runs.tables import Tables
from sluice_spark.runs.window_offsets import WindowOffsets
from sluice_spark.sinks.base import ReadableSink
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.sinks.parquet.rows_by_time import RowsByTime
from sluice_spark.sinks.parquet.slice import Slice
from sluice_spark.sources.base import RECORD_SCHEMA, Records
from sluice_spark.transforms.lookups import Lookups

__all__ = ["WindowIntervalRun"]

_PLACE = ("_topic", "_partition", "_offset")
_PARTLY = "__sluice_partly"


@dataclass
class WindowIntervalRun(IntervalRun):
    """Replaces the closed windows that begin in an interval of event time, from all of their records.

    Notes
    -----
    A session is replaced by the interval in which it begins, wherever it ends. Its parts, which live runs wrote because
    records came late, leave with it.

    It changes neither the live state nor windows that are open. Records that came too late for live runs are in their
    windows now. In the quarantine it replaces what it refuses now, and takes out what all of its windows have absorbed;
    everything else stays. A crash leaves what it leaves of :class:`IntervalRun`.
    """

    _reach: int | None = field(default=None, init=False)
    """The last end of the sessions that are replaced, in milliseconds since 1970."""

    def __post_init__(self) -> None:
        self._offsets: WindowOffsets = WindowOffsets(self.context, self.interval)

    def _is_rival(self, note: Mapping[str, Any]) -> bool:
        """Return whether a commit changed these windows, or ended the epoch that closed them."""
        return HANDOVER in note or super()._is_rival(note) or self._reaches(note)

    def _beside_overlapping(self, lease: Lease) -> None:
        """Also finish what drivers left that died on any other interval: they share the quarantine's records."""
        super()._beside_overlapping(lease)
        tables = self.context.redriven()
        for known in half_done(self.ledger, self.pipeline.name, tables.replacing()):
            if known.interval != self.scope:
                with suppress(LeaseHeldError):  # another driver is about to do it
                    take_over(self.ledger, lease, tables, known)

    def _reaches(self, note: Mapping[str, Any]) -> bool:
        """Return whether another interval's sessions, or the parts that left with them, may be those of this one."""
        reach = (note.get("windows") or {}).get("reach")
        if reach is None or self._reach is None or note["interval"] == self.scope:
            return False
        other = Interval.from_key(note["interval"]).milliseconds[0]
        return bool(other <= self._reach and self.interval.milliseconds[0] <= reach)

    def _due(self, tables: Tables, readable: Sequence[OffsetRange]) -> bool:
        """Return whether there are records, or windows of an earlier file whose times no record has any more."""
        if readable:
            return True
        gone = self._gone()
        tables.replacing().held(gone)
        return gone.found > 0

    def records(self, source: Records, readable: Sequence[OffsetRange]) -> DataFrame:
        return source.read(readable) if readable else SparkSession.active().createDataFrame([], RECORD_SCHEMA)

    def _gone(self) -> RowsByTime:
        return RowsByTime((), *self._offsets.span, column=START)

    def _writer(self, spark: SparkSession, tables: Tables, lookups: Lookups) -> BatchWriter:
        writer = cast(WindowWriter, self.context.writer(spark, tables, lookups))
        asked = self._offsets.span, self._offsets.closed, round(time.time() * 1000)
        if writer.window.gap is None:
            return RecomputedWindows.of(writer, *asked)
        return replace(RecomputedSessions.of(writer, *asked), until=self.interval.milliseconds[1])

    def leaving(self, batch: IntervalBatch) -> Leaving:
        prepared, readable, source, tables = batch.prepared, batch.readable, batch.source, batch.tables
        writer = cast(RecomputedWindows, batch.writer)
        self._nothing_compacted(prepared, readable)
        refused = tables.quarantine.staged_offsets(prepared.quarantine) if prepared.quarantine is not None else {}
        held = tables.quarantine.held(Slice(readable))
        newly = sum(len(np.setdiff1d(offsets, held.get(key, []))) for key, offsets in refused.items())
        before = {key: np.setdiff1d(offsets, refused.get(key, [])) for key, offsets in held.items()}
        absorbed = self._absorbed(writer, {k: o for k, o in before.items() if len(o)}, readable, source)
        partly = _spans(_by_key(row for row in absorbed if row[3]))
        gone = [*_spans(refused), *_spans(_by_key(row for row in absorbed if not row[3]))]
        notes = []
        if newly:
            notes.append(
                f"{newly:,} records are refused now and were not before, also where their windows are none of the "
                "interval's: these windows still have them, until they are made again"
            )
        if partly:
            notes.append(
                f"{sum(map(len, partly)):,} records that were refused before are in windows of the interval now, and "
                "have other windows, too: they stay in the quarantine, until an interval has all of their windows"
            )
        rows: Slice = self._gone()
        # for an audit, and for intervals beside it
        told: dict[str, Any] = {"partly": [span.as_list() for span in partly]} if partly else {}
        if isinstance(writer, RecomputedSessions):
            rows, self._reach = self._parts(writer, tables, readable, source)
            told |= {"reach": self._reach}
        return Leaving(rows, Slice(gone), lambda _: None, tuple(notes), told)

    def _parts(
        self, writer: RecomputedSessions, tables: Tables, readable: Sequence[OffsetRange], source: Records
    ) -> tuple[Slice, int]:
        """Return the rows of the table in whose place the sessions come, and the last end of any of both."""
        spark = SparkSession.active()
        held = cast(ReadableSink, tables.sink).rows(spark)
        records = self.records(source, readable)
        try:
            found = writer.replaced(records, held).toArrow()
            final = writer.last(records)
        except SluiceError:
            raise
        except Exception as error:
            raise source.diagnose(error, readable) from error
        if len(torn := found.filter(pc.field(TORN))):
            raise self._torn(torn)
        gone = found.drop_columns([TORN])
        ends = [pc.max(gone.column(END).cast(pa.int64())).as_py(), final]
        last = max((end for end in ends if end is not None), default=0)
        return RowsByKey.among(gone.to_batches(), gone.column_names), -(-last // 1000)

    def _torn(self, rows: Any) -> ConfigError:
        """Return the error for rows whose records are in sessions now that the interval replaces in part only."""
        first, last = (
            instant(of(rows.column(name).cast(pa.int64())).as_py())
            for of, name in ((pc.min, START), (pc.max, END))
        )  # fmt: skip
        return ConfigError(
            f"pipeline {self.pipeline.name!r}: records of {len(rows):,} rows of the table, from {first} to {last}, are "
            f"in other sessions by the pipeline file of now, also in some that do not begin in {self.interval}",
            state="nothing was replaced",
            next_step=f"choose an interval that begins at {first} or earlier and ends at {last} or later, and where no "
            "session is open any more",
        )

    def _absorbed(
        self,
        writer: RecomputedWindows,
        among: Mapping[Key, Any],
        readable: Sequence[OffsetRange],
        source: Records,
    ) -> list[tuple[str, int, int, bool]]:
        """Return which of these offsets the windows have absorbed, and of each whether it has other windows, too."""
        if not among:
            return []
        hulls = [OffsetRange(*key, int(offsets[0]), int(offsets[-1]) + 1) for key, offsets in among.items()]
        # which session a record belongs to, only all of them say
        whole = isinstance(writer, RecomputedSessions)
        records = source.read(readable if whole else overlaps(readable, hulls))
        columns = zip(*((*key, int(o)) for key, offsets in among.items() for o in offsets), strict=True)
        wanted = records.sparkSession.createDataFrame(pa.table(dict(zip(_PLACE, map(list, columns), strict=True))))
        rows = writer.absorbed(records).select(*_PLACE, (~writer.held_whole()).alias(_PARTLY))
        chosen = rows.join(F.broadcast(wanted), list(_PLACE), "left_semi")
        # a record may have several rows
        found = chosen.groupBy(*_PLACE).agg(F.bool_or(_PARTLY)).orderBy(*_PLACE).collect()
        return [(row[0], row[1], row[2], row[3]) for row in found]

    def _nothing_compacted(self, prepared: PreparedBatch, readable: Sequence[OffsetRange]) -> None:
        """Refuse to make windows again without records that live runs absorbed, and the source has removed since."""
        known = self._offsets.absent(readable)
        for account in prepared.accounts:
            span, absent = account.range, account.counts.absent
            if absent > (before := known.get((span.topic, span.partition), 0)):
                raise OffsetsGoneError(
                    f"pipeline {self.pipeline.name!r}: Kafka removed {absent - before:,} records of {span} by "
                    "compaction since live runs absorbed them",
                    next_step="keep the windows as they are: they would be made again without these records",
                    ranges=[span],
                )


def _by_key(rows: Iterable[tuple[str, int, int, bool]]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for topic, partition, offset, _ in rows:
        found.setdefault((topic, partition), []).append(offset)
    return found


def _spans(offsets: Mapping[Key, Iterable[int]]) -> list[OffsetRange]:
    return [span for key, numbers in offsets.items() for span in runs_of(*key, map(int, numbers))]
