"""One batch of a pipeline with windows: write the windows that it closes, and account for each record that it read.

The engine passes the windows that are closed, not the records. So the batch's ranges are read a second time, decoded
and transformed again, and counted: which records were absorbed by a window, and which came too late. Spark itself
counts parts of windows, not records. Both passes see the same records, because ranges do not change, and judge them by
the same times, because Spark keeps them with the batch's plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.faults import point
from sluice.pipeline import Rows
from sluice.pipeline.window import Window
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount
from sluice.run.checkpoint import Clock
from sluice_spark.batch.account import account_for
from sluice_spark.batch.tally import ReadTally
from sluice_spark.batch.writer import BatchWriter, PreparedBatch, again
from sluice_spark.decoders.base import COLUMN, RULE
from sluice_spark.sinks.base import Tally
from sluice_spark.sources.base import Records
from sluice_spark.windows.aggregate import column, strange, windows_of
from sluice_spark.windows.late import late, partly_late

__all__ = ["WindowWriter", "without_late"]

Key = tuple[str, int]
_BROKEN = "__sluice_broken"


class _Seen(NamedTuple):
    """What the second pass counted, per topic and partition."""

    read: Mapping[Key, int]
    bad: Mapping[Key, int]
    rows: Mapping[Key, Tally]
    late: Mapping[Key, int]
    partly: int
    latest: int | None
    times: Sequence[Any] = ()


@dataclass(frozen=True)
class WindowWriter(BatchWriter):
    """Prepares and commits the batches of a pipeline with windows.

    Parameters
    ----------
    clock
        The times of the batch, from the checkpoint.
    """

    clock: Clock = field(default=Clock(0, 0, 0))

    @property
    def window(self) -> Window:
        """The pipeline's windows."""
        assert self.pipeline.window is not None
        return self.pipeline.window

    def closed(self, records: DataFrame) -> DataFrame:
        """Return the stream of closed windows, from the stream of records."""
        rows = self._transformed(self.decoded(records))
        # in a stream, Spark puts the time there with which it planned the batch
        return windows_of(rows.where(strange(self.window, F.current_timestamp()).isNull()), self.window)

    def prepare(
        self,
        records: DataFrame,
        name: str,
        ranges: Sequence[OffsetRange],
        source: Records,
        lost: Sequence[LostRange] = (),
        passed: Sequence[OffsetRange] = (),
    ) -> PreparedBatch:
        """Write the closed windows to files and account for each offset that was read. Commits nothing.

        Parameters
        ----------
        records
            The closed windows, as the engine passed them. They are used once: a frame with state must be consumed, as
            a whole, or the checkpoint is of no use any more.
        ranges
            The planned ranges of the batch; none if it only closes windows.
        source
            Reads the records.
        """
        assert not lost
        assert not passed
        staged = self.sink.stage(records.withColumn("_run", F.lit(self.run_id)), name, offsets=False)
        point("rows-staged")
        seen = self._count(ranges, source)
        source.verify(seen.read, ranges)
        accounts = account_for(self.pipeline.rows, ranges, seen.read, seen.bad, seen.rows)
        accounts = [replace(a, times=tuple(t for t in seen.times if a.range.cut(t.range))) for a in accounts]
        self.explain_gaps(accounts, ranges, source)
        quarantine = None
        if seen.bad:
            (refused,) = again(seen.bad, ranges, source)
            quarantine = self.stage_refused(refused, name, seen.bad)
            point("quarantine-staged")
        came_late = [(a.range, seen.late.get((a.range.topic, a.range.partition), 0)) for a in accounts]
        told = {
            "rows": staged.rows,
            "late": [[*span.as_list(), count] for span, count in came_late if count],
            "partly_late": seen.partly,
            "latest": seen.latest,
            "late_by": self.clock.late,
            "closed_to": self.clock.closing,
            "absorption": self.pipeline.absorption,
        }
        return PreparedBatch(tuple(without_late(accounts, seen.late)), staged, quarantine, windows=told)

    def judged(self, records: DataFrame) -> DataFrame:
        """Return the decoded records, with the rule that the event time of their row breaks."""
        found = self.decoded(records)
        broken = self._told(self._transformed(found)).where(F.col(_BROKEN).isNotNull())
        names = ("topic", "partition", "offset")
        keys = broken.select(*(F.col(f"_{name}").alias(f"__of_{name}") for name in names), _BROKEN)
        both = found.join(keys, [F.col(name) == F.col(f"__of_{name}") for name in names], "left")
        of_time = F.col(RULE).isNull() & F.col(_BROKEN).isNotNull()
        judged = {
            RULE: F.coalesce(RULE, _BROKEN),
            COLUMN: F.when(of_time, F.lit(self.window.time)).otherwise(F.col(COLUMN)),
        }
        return both.select(*(judged.get(name, F.col(name)).alias(name) for name in found.columns))

    def _transformed(self, decoded: DataFrame) -> DataFrame:
        return super().rows_of(decoded).drop("_run")

    def _told(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn(_BROKEN, strange(self.window, F.timestamp_millis(F.lit(self.clock.now))))

    def _count(self, ranges: Sequence[OffsetRange], source: Records) -> _Seen:
        if not ranges:
            return _Seen({}, {}, {}, {}, 0, None)
        records = source.read(ranges)
        tally = ReadTally(self.decoded(records), ranges)
        rows = self._told(self._transformed(tally.frame))
        sound = F.col(_BROKEN).isNull()
        offset = F.when(sound, F.col("_offset"))
        counted = rows.groupBy("_topic", "_partition").agg(
            F.count(F.when(~sound, 1)).alias("broken"),
            F.count(offset).alias("rows"),
            # of one record at most one row, if each row has an offset of its own
            (F.count_distinct(offset) if self.pipeline.rows is Rows.FILTER or self.opaque else F.count(offset)).alias(
                "offsets"
            ),
            F.min(offset).alias("first"),
            F.max(offset).alias("last"),
            F.count_if(sound & late(self.window, self.clock.late)).alias("late"),
            F.count_if(sound & partly_late(self.window, self.clock.late)).alias("partly"),
            F.max(F.when(sound, F.unix_millis(column(self.window.time)))).alias("latest"),
        )
        found = {(row["_topic"], row["_partition"]): row for row in counted.collect()}
        if self.opaque:
            self.refuse_strange(rows, records)
        bad = dict(tally.bad())
        for key, row in found.items():
            if row["broken"]:
                bad[key] = bad.get(key, 0) + row["broken"]
        return _Seen(
            tally.read(),
            bad,
            {k: Tally(r["rows"], r["offsets"], r["first"], r["last"]) for k, r in found.items() if r["rows"]},
            {k: r["late"] for k, r in found.items() if r["late"]},
            sum(r["partly"] for r in found.values()),
            max((r["latest"] for r in found.values() if r["latest"] is not None), default=None),
            tally.times(),
        )


def without_late(accounts: Sequence[RangeAccount], late: Mapping[Key, int]) -> list[RangeAccount]:
    """Count late records as filtered: no window absorbed them; pure."""
    found = []
    for account in accounts:
        count = late.get((account.range.topic, account.range.partition), 0)
        counts = account.counts + Counts(written=-count, filtered=count)
        found.append(replace(account, counts=counts))
    return found
