"""One batch of a pipeline with ``dedupe``: write the first row of each key, and say what became of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.errors import SluiceError
from sluice.facts import Duplicates
from sluice.pipeline.dedupe import Dedupe
from sluice.ranges import OffsetRange
from sluice.run.rebuild_plan import Kept
from sluice_spark.batch.account import ROLLED_BACK
from sluice_spark.batch.stateful import Key, Opening, Seen, StatefulWriter, by_range, dropped, note_of
from sluice_spark.batch.writer import PreparedBatch
from sluice_spark.columns import column
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import ReadableSink
from sluice_spark.sources.base import within
from sluice_spark.windows import duplicates

__all__ = ["DedupeWriter", "duplicates_in"]

_KEPT = "__sluice_kept"
_PLACE = ("topic", "partition", "offset")


@dataclass(frozen=True)
class DedupeWriter(StatefulWriter):
    """Prepares and commits the batches of a pipeline with ``dedupe``. It emits rows as they came.

    Parameters
    ----------
    held
        For a batch that is in the sink, and whose state is made again: its ranges, and its rows there. Which of a
        batch's duplicates comes first is up to Spark's shuffle, so that another attempt could choose others.
    """

    held: tuple[tuple[OffsetRange, ...], DataFrame] | None = None

    @property
    def traced(self) -> bool:
        """Its rows are those of single records."""
        return True

    @property
    def dedupe(self) -> Dedupe:
        """The pipeline's ``dedupe``."""
        assert self.pipeline.dedupe is not None
        return self.pipeline.dedupe

    @property
    def time(self) -> str:
        """The column with the event time."""
        return self.dedupe.time

    def opened(self, opening: Opening) -> Self:
        """Return the writer that drops what an earlier attempt dropped, if the sink has the batch that it died on."""
        return replace(self, held=self._held_by(opening)) if opening.in_sink else self

    def _held_by(self, opening: Opening) -> tuple[tuple[OffsetRange, ...], DataFrame] | None:
        number = opening.begun
        note = note_of(self.sink, number) if number is not None else {}
        if number is None or not note:
            return None
        ranges = tuple(opening.checkpoint.ranges_of(number))
        if not ranges:
            return None
        rows, _ = cast(ReadableSink, self.sink).rows_of(opening.spark, [note["run"]])
        there = rows.where(within(ranges, "_")).select(*(f"_{name}" for name in _PLACE)).distinct()
        written = sum(account["written"] for account in note["accounts"])
        if (found := there.count()) != written:
            logger.warning(
                "batch %d wrote %d rows, and the sink has %d of them: its keys are remembered from its records instead",
                number, written, found,
            )  # fmt: skip
            return None
        return ranges, there

    def remembered(self, rows: DataFrame, needed: Kept) -> tuple[DataFrame, str]:
        """Return the rows whose keys are to be remembered: the first of each key are those that the sink has."""
        until = F.unix_micros(column(self.time)) + round(self.dedupe.within.total_seconds() * 1_000_000)
        places = [f"_{name}" for name in _PLACE]
        held = cast(ReadableSink, self.sink).rows(rows.sparkSession)
        there = held.where(within(needed.ranges, "_")).select(*places).distinct()
        missing = needed.written - there.count()
        note = f"{missing:,} rows have left the sink since they were written: their keys are not remembered any more"
        return (
            rows.where(until > needed.watermark * 1000).join(there, places, "left_semi"),
            note if missing > 0 else "",
        )

    def emit(self, records: DataFrame) -> DataFrame:
        """Return the stream of first rows, from the stream of records."""
        rows = self.transformed(self.decoded(records))
        rows = duplicates.timely(rows.where(self.strange(F.current_timestamp()).isNull()), self.dedupe, self.held_to)
        return duplicates.firsts(self._as_held(rows), self.dedupe)

    def _as_held(self, rows: DataFrame) -> DataFrame:
        """Leave out rows that an earlier attempt dropped: then Spark's state is that of the rows in the sink.

        It comes after the watermark, which those rows have moved.
        """
        if self.held is None:
            return rows
        ranges, there = self.held
        kept = there.select(*(F.col(f"_{name}").alias(f"{_KEPT}_{name}") for name in _PLACE), F.lit(1).alias(_KEPT))
        same = [F.col(f"_{name}") == F.col(f"{_KEPT}_{name}") for name in _PLACE]
        columns = [column(name) for name in rows.columns]
        judged = rows.join(F.broadcast(kept), same, "left")
        return judged.where(F.col(_KEPT).isNotNull() | ~within(ranges, "_")).select(*columns)

    def strange(self, now: Column) -> Column:
        """Return the rule that a row breaks by its keys or its event time."""
        return duplicates.strange(self.dedupe, now)

    def blamed(self, rule: Column) -> Column:
        """Return the name of the column by which a row breaks a rule."""
        return F.when(rule == duplicates.KEYLESS, F.lit(", ".join(self.dedupe.keys))).otherwise(F.lit(self.time))

    def late(self) -> Column:
        """Return whether a row is too old to know whether it is a duplicate."""
        return duplicates.late(self.dedupe, self.clock.late)

    def account(self, prepared: PreparedBatch, seen: Seen) -> PreparedBatch:
        """Count late records and duplicates as filtered."""
        passed = {key: tally.rows for key, tally in prepared.staged.tallies.items()}
        doubled = duplicates_in({key: t.rows for key, t in seen.rows.items()}, seen.late, passed)
        gone = {key: seen.late.get(key, 0) + doubled.get(key, 0) for key in {*seen.late, *doubled}}
        fact = Duplicates(
            duplicates=by_range(prepared, doubled),
            late=by_range(prepared, seen.late),
            late_by=self.clock.late,
            absorption=self.pipeline.absorption,
            timing=self.pipeline.timing,
            partitions=self.partitions(seen),
        )
        return replace(prepared, accounts=tuple(dropped(prepared.accounts, gone))).having(fact)


def duplicates_in(came: Mapping[Key, int], late: Mapping[Key, int], passed: Mapping[Key, int]) -> dict[Key, int]:
    """Return how many rows were duplicates, from those that came, were late and passed; pure.

    Raises
    ------
    SluiceError
        If more rows passed than came in time: then the two readings of the batch gave other rows.
    """
    found = {key: came.get(key, 0) - late.get(key, 0) - passed.get(key, 0) for key in {*came, *passed}}
    for (topic, partition), count in sorted(found.items()):
        if count < 0:
            raise SluiceError(
                f"of {topic}-{partition}, {-count} more rows passed dedupe than a second reading of the batch found: "
                "the transform gives other rows each time that it reads the same records",
                state=ROLLED_BACK,
                next_step="make the transform a function of the record alone, then run again",
            )
    return {key: count for key, count in found.items() if count}
