"""One batch of a pipeline with windows: write the windows that it closes, and say which records came too late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.pipeline.window import END, START, Window
from sluice.run.checkpoint import Checkpoint
from sluice.run.rebuild_plan import Kept
from sluice_spark.batch.results import ResultWriter
from sluice_spark.batch.stateful import Opening, Seen
from sluice_spark.batch.writer import PreparedBatch
from sluice_spark.sinks.base import Fence, ReplaceableSink, Staged
from sluice_spark.sinks.parquet.rows_by_time import RowsByTime
from sluice_spark.sources.base import within
from sluice_spark.windows.aggregate import strange, windows_of
from sluice_spark.windows.late import late, partly_late
from sluice_spark.windows.state import PaneSpans, open_windows

__all__ = ["WindowWriter"]

_EVER = 1 << 52
_EVER_AGO = -_EVER


@dataclass(frozen=True)
class WindowWriter(ResultWriter):
    """Prepares and commits the batches of a pipeline with windows. It emits the windows that are closed.

    Parameters
    ----------
    former_to
        This epoch does not write windows that end there or before, in milliseconds since 1970: it read only a part of
        their records, and the table may have them. A session counts by each of its records alone. None if it writes
        all.
    afresh
        If given, rows of windows that end behind ``former_to`` and begin after this time leave the table: the batch
        makes again what is open, and an earlier epoch may have written it by ``output: update``, perhaps by another
        definition.
    """

    former_to: int | None = None
    afresh: int | None = None

    @property
    def window(self) -> Window:
        """The pipeline's windows."""
        assert self.pipeline.window is not None
        return self.pipeline.window

    @property
    def operator(self) -> Window:
        """The pipeline's windows."""
        return self.window

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that tell one row from another."""
        return (START, END, *self.window.by)

    @property
    def time(self) -> str:
        """The column with the event time."""
        return self.window.time

    def opened(self, opening: Opening) -> WindowWriter:
        """Return the writer that makes windows as this epoch began to."""
        from sluice_spark.batch.panes import in_its_way  # a subclass is there

        writer = in_its_way(self, opening)
        return replace(writer, former_to=opening.former_to(self.pipeline)).checked(opening)

    def rebuilt(self, needed: Kept, spanned: tuple[int, int] | None) -> Self:
        """Return the writer of the batch that makes the state of an epoch again."""
        return replace(super().rebuilt(needed, spanned), afresh=needed.begun)

    def remembered(self, rows: DataFrame, needed: Kept) -> tuple[DataFrame, str]:
        """Return the rows of the windows that are open."""
        wanted = rows.where(~late(self.window, self.former_to or 0))
        if self.quarantine.table() is None:
            return wanted, ""
        # no window has what is there: also what was ahead of time, and is not any more
        places = ["_topic", "_partition", "_offset"]
        refused = self.quarantine.rows(rows.sparkSession).where(within(needed.ranges, "_")).select(*places).distinct()
        return wanted.join(refused, places, "left_anti"), ""

    def counted(self, spark: SparkSession, checkpoint: Checkpoint, batch: int) -> dict[str, int | None]:
        """Return how many keys and open windows the state has after a batch; sessions are summed up by hours."""
        found = open_windows(spark, checkpoint.path, batch, self.panes(checkpoint.watermark(batch)))
        if (former := checkpoint.former_to()) is not None:  # which this epoch does not write
            found = [each for each in found if each["window_end"] > former]
        windows = len(found) if self.window.gap is None else None
        return {"keys": sum(each["keys"] for each in found), "windows": windows}

    def panes(self, watermark: int) -> PaneSpans | None:
        """Return how the state's panes lie; None if it has windows."""
        return None

    def emit(self, records: DataFrame) -> DataFrame:
        """Return the stream of closed windows, from the stream of records."""
        rows = self.transformed(self.decoded(records))
        # in a stream, Spark puts the time there with which it planned the batch
        sound = rows.where(self.strange(F.current_timestamp()).isNull())
        if self.former_to is None:
            return windows_of(sound, self.window, self.held_to)
        if self.window.gap is not None:  # as if they were late: a session may go on for ever
            return windows_of(sound.where(~late(self.window, self.former_to)), self.window, self.held_to)
        found = windows_of(sound, self.window, self.held_to)
        return found.where(F.col(END) > F.timestamp_millis(F.lit(self.former_to)))

    def strange(self, now: Column) -> Column:
        """Return the rule that a row breaks."""
        return strange(self.window, now, self.taken)

    def late(self) -> Column:
        """Return whether all windows of a row were closed."""
        if self.window.output == "complete":
            return F.lit(False)
        return late(self.window, self.clock.late)

    def partly_late(self) -> Column:
        """Return whether some windows of a row were closed, or are those of an earlier epoch, and not all."""
        if self.window.output == "complete":
            return F.lit(False)
        return partly_late(self.window, max(self.clock.late, self.former_to or 0))

    def former(self) -> Column:
        """Return whether all windows of a row are closed or those of an earlier epoch, and not all are closed."""
        if self.former_to is None:
            return F.lit(False)
        return late(self.window, self.former_to) & ~self.late()

    def commit_rows(self, staged: Staged, batch: int, note: Mapping[str, object], fence: Fence | None) -> bool:
        """Commit staged windows, in place of those that ``window.output`` says."""
        if self.afresh is not None:
            return self._in_place_of_open(self.afresh, staged, batch, note, fence)
        return super().commit_rows(staged, batch, note, fence)

    def _in_place_of_open(
        self, begun: int, staged: Staged, batch: int, note: Mapping[str, object], fence: Fence | None
    ) -> bool:
        """Commit staged windows in place of all that are not closed; with ``output: append``, there is neither."""
        if not self.replaces:
            return super().commit_rows(staged, batch, note, fence)
        sink = cast(ReplaceableSink, self.sink)
        since = _EVER_AGO if self.former_to is None else self.former_to + 1
        gone = RowsByTime((), since, _EVER, column=END, after=(START, begun))
        sink.held(gone)
        if not gone.found:
            return super().commit_rows(staged, batch, note, fence)
        sink.check_replaceable()
        name = staged.batch if staged.files else f"nothing-{batch}"
        return sink.replace(gone, staged, self.schema, batch, note, name=name, fence=fence) is not None

    def account(self, prepared: PreparedBatch, seen: Seen) -> PreparedBatch:
        """Count late records as filtered: no window absorbed them."""
        return self.moved(
            prepared,
            seen,
            former_to=self.former_to,  # an audit needs it also if the checkpoint is lost
            aggregation=self.pipeline.aggregation,
            timing=self.pipeline.timing,
            absorbed=None if self.spanned is None else list(self.spanned),
        )
