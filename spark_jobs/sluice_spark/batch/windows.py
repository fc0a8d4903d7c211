"""One batch of a pipeline with windows: write the windows that it closes, and say which records came too late."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.errors import CheckpointError, ConfigError
from sluice.pipeline.window import END, START, Window
from sluice.run.checkpoint import Checkpoint
from sluice.run.rebuild_plan import Kept
from sluice_spark.batch.stateful import Opening, Seen, StatefulWriter, way_on
from sluice_spark.batch.writer import PreparedBatch
from sluice_spark.sinks.base import Fence, ReplaceableSink, Staged
from sluice_spark.sinks.parquet.all_rows import AllRows
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.sinks.parquet.rows_by_time import RowsByTime
from sluice_spark.sources.base import within
from sluice_spark.windows.aggregate import blamed, strange, windows_of
from sluice_spark.windows.late import late, partly_late
from sluice_spark.windows.state import PaneSpans, open_windows

__all__ = ["WindowWriter"]

_EVER = 1 << 52
_EVER_AGO = -_EVER
_BLIND = re.compile(
    r"\b(array_agg|approx_\w+|bitmap_\w+|collect_\w+|histogram_numeric|listagg|median|mode|percentile\w*|string_agg"
    r"|\w*sketch\w*)\s*\(",
    re.IGNORECASE,
)
"""Aggregates whose state is bytes, or hashes, to Spark: it reads those of another type without a word."""


@dataclass(frozen=True)
class WindowWriter(StatefulWriter):
    """Prepares and commits the batches of a pipeline with windows. It emits the windows that are closed.

    Parameters
    ----------
    taken
        The columns of the transform's rows.
    former_to
        This epoch does not write windows that end there or before, in milliseconds since 1970: it read only a part of
        their records, and the table may have them. A session counts by each of its records alone. None if it writes
        all.
    afresh
        If given, rows of windows that end behind ``former_to`` and begin after this time leave the table: the batch
        makes again what is open, and an earlier epoch may have written it by ``output: update``, perhaps by another
        definition.
    """

    taken: StructType = field(default_factory=StructType)
    former_to: int | None = None
    afresh: int | None = None

    @property
    def window(self) -> Window:
        """The pipeline's windows."""
        assert self.pipeline.window is not None
        return self.pipeline.window

    @property
    def time(self) -> str:
        """The column with the event time."""
        return self.window.time

    def opened(self, opening: Opening) -> WindowWriter:
        """Return the writer that makes windows as this epoch began to."""
        from sluice_spark.batch.panes import in_its_way  # a subclass is there

        writer = in_its_way(self, opening)
        if writer.window.output == "complete" and self._replaces:
            writer.refuse_to_empty(opening)
        writer = replace(writer, former_to=opening.former_to(self.pipeline))
        writer.refuse_other_types(opening)
        return writer

    @property
    def _replaces(self) -> bool:
        """Whether the sink keeps rows that later ones can take the place of."""
        return self.pipeline.sink.kind.by_value

    def refuse_to_empty(self, opening: Opening) -> None:
        """Refuse to put a first result in place of rows that another program wrote.

        Raises
        ------
        ConfigError
            If the pipeline has never read anything, and the table has files.
        """
        sink, every = cast(ReplaceableSink, self.sink), AllRows(())
        if sink.version() >= 0 or opening.ledger.offsets.reached(self.pipeline.name, ever=True):
            return
        sink.held(every)
        if every.found:
            raise ConfigError(
                f"{sink.path} has rows, and none of them is of pipeline {self.pipeline.name!r}: with output: "
                "complete its first batch would take their place",
                state="nothing was read or written",
                next_step="name another path in the pipeline file; or, if these rows are not needed, delete them first",
            )

    def refuse_other_types(self, opening: Opening) -> None:
        """Refuse to go on with open windows whose values Spark would take for those of another type.

        Raises
        ------
        CheckpointError
            With the columns that have another type now.
        """
        checkpoint, types = opening.checkpoint, self.types
        known = checkpoint.types() if checkpoint.planned() else None
        if known is None:  # of an earlier version, or there is no state yet
            checkpoint.note_types(types)
            return
        differing = [(name, known[name], kind) for name, kind in types.items() if known.get(name, kind) != kind]
        if differing:
            told = ", ".join(f"{name} was {old.upper()} and is {new.upper()}" for name, old, new in differing)
            name, old, _ = differing[0]
            raise CheckpointError(
                f"pipeline {self.pipeline.name!r}: epoch {opening.epoch} has open windows whose values are of another "
                f"type: {told}",
                state="nothing was read or written; what is kept between runs is in the checkpoint as it was",
                next_step=f"CAST({name} AS {old.upper()}) in the transform, or undo the change in "
                f"{self.pipeline.file.name}; or {way_on(self.pipeline)}",
            )

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

    def blamed(self, rule: Column) -> Column:
        """Return the name of the column by which a row breaks a rule."""
        return blamed(self.window, rule, self.taken)

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns whose values Spark keeps in open windows without their types."""
        blind = [text for text in self.window.aggregates.values() if _BLIND.search(text)]
        named = {word.lower() for text in blind for word in re.findall(r"\w+", text)}
        return {f.name: f.dataType.simpleString() for f in self.taken.fields if f.name.lower() in named}

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

    @property
    def output(self) -> str:
        """Spark's output mode: that of the windows."""
        return self.window.output

    def commit_rows(self, staged: Staged, batch: int, note: Mapping[str, object], fence: Fence | None) -> bool:
        """Commit staged windows, in place of those that ``window.output`` says.

        With ``update``, those with the same bounds and keys; with ``complete``, all rows. A sink that keeps no rows is
        handed the windows that the batch changed, or all of them.
        """
        if self.afresh is not None:
            return self._in_place_of_open(self.afresh, staged, batch, note, fence)
        whole = self.window.output == "complete"
        if self.window.output == "append" or not self._replaces or not (staged.files or whole):
            return super().commit_rows(staged, batch, note, fence)
        sink = cast(ReplaceableSink, self.sink)
        sink.check_replaceable()
        gone = AllRows(()) if whole else RowsByKey.of(str(sink.staging), staged, (START, END, *self.window.by))
        name = staged.batch if staged.files else f"nothing-{batch}"  # of which no file is written
        done = sink.replace(gone, staged, self.schema, batch, note, name=name, fence=fence)
        return done is not None

    def _in_place_of_open(
        self, begun: int, staged: Staged, batch: int, note: Mapping[str, object], fence: Fence | None
    ) -> bool:
        """Commit staged windows in place of all that are not closed; with ``output: append``, there is neither."""
        if not self._replaces:
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
