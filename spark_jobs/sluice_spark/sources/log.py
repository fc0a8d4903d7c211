"""The write-ahead log as a source: it reads records by their offsets from sealed segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import START_OVER, SinkError, SluiceError
from sluice.ranges import OffsetRange, Positions, overlaps, subtract
from sluice.sources.state import TopicState
from sluice.wal import DamagedLogError, Segment, WriteAheadLog
from sluice_spark.engine.failures import Sign, classify
from sluice_spark.paths import literal
from sluice_spark.sources.base import RECORD_SCHEMA, within
from sluice_spark.sources.inputs import Input
from sluice_spark.sources.log_input import LogInput
from sluice_spark.sources.range_source import stream_of_cuts

__all__ = ["LogReader", "LogRecords", "layers"]

_SIGNS = (
    Sign(
        SinkError,
        ("TimeoutException", "DisconnectException", "UnknownHostException", "Connection refused"),
        "fix the storage of the write-ahead log, then run again",
    ),
)
_VERIFY = {"parquet.page.verify-checksum.enabled": "true"}


@dataclass(frozen=True)
class LogRecords:
    """Reads records by their offsets from sealed segments.

    Parameters
    ----------
    segments
        Handles of all segments that may be needed; others are never opened.
    """

    spark: SparkSession
    log: WriteAheadLog
    segments: tuple[Segment, ...]

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges. Reading verifies the checksum of each page.

        Raises
        ------
        DamagedLogError
            If a segment is missing or truncated, or its footer is corrupt. Corrupt pages are found when they are read.
        """
        chosen = [s for s in self.segments if any(s.range.cut(r) for r in ranges)]
        if self.log.check(chosen):
            self.explain(ranges)  # also names segments with corrupt pages
        if not chosen:
            return self.spark.createDataFrame([], RECORD_SCHEMA)
        frames = [self._frame(layer, parts) for layer, parts in layers(chosen, ranges)]
        return reduce(DataFrame.unionAll, frames)

    def _frame(self, segments: Sequence[Segment], ranges: Sequence[OffsetRange]) -> DataFrame:
        files = [f"{self.log.path}/{s.path}" for s in segments]
        frame = self.spark.read.schema(RECORD_SCHEMA).options(**_VERIFY).parquet(*map(literal, files))
        whole = all(_covered(s.range, ranges) for s in segments)
        return frame if whole else frame.where(within(ranges))

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return the segments; workers can read what they account for."""
        chosen = tuple(s for s in self.segments if any(s.range.cut(r) for r in ranges))
        return [(LogInput(self.log.path, layer), parts) for layer, parts in layers(chosen, ranges)]

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return nothing: gaps were accounted for when the records were landed."""
        return []

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Compare the number of records with what was sealed, if whole segments were read."""
        chosen = [s for s in self.segments if any(s.range.cut(r) for r in ranges)]
        if not all(_covered(s.range, ranges) for s in chosen) or len(layers(chosen, ranges)) > 1:
            return
        sealed: dict[tuple[str, int], int] = {}
        for s in chosen:
            key = (s.range.topic, s.range.partition)
            sealed[key] = sealed.get(key, 0) + s.records
        if {k: n for k, n in read.items() if n} != {k: n for k, n in sealed.items() if n}:
            self.explain(ranges)
            raise SinkError(
                f"the write-ahead log {self.log.path} gave {sum(read.values())} records where "
                f"{sum(sealed.values())} were sealed",
                state="nothing of this batch is visible in the sink",
                next_step="run again; if it happens again, check the log's storage",
            )

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Look for damaged segments first, whatever the error says."""
        try:
            self.explain(ranges)
        except SluiceError as found:
            return found
        return classify(error, lambda: None, _SIGNS)

    def explain(self, ranges: Sequence[OffsetRange]) -> None:
        """Read every page of the segments of these ranges.

        Raises
        ------
        DamagedLogError
            If one is damaged; with all damaged ones.
        """
        damages = self.log.check([s for s in self.segments if any(s.range.cut(r) for r in ranges)], pages=True)
        if damages:
            raise self._damaged(damages)

    def _damaged(self, damages: Sequence[Any]) -> DamagedLogError:
        return DamagedLogError(
            self.log.pipeline,
            damages,
            next_step="restore the files from a copy and run again. Without one: --recovery replay reads these "
            "offsets from the source while it has them; --recovery ignore_range records them as lost and goes on. With "
            f"rows: aggregate, a window, dedupe or a processor the strategy cannot change: {START_OVER}",
        )


@dataclass(frozen=True)
class LogReader(LogRecords):
    """Reads sealed batches as a stream, each as one micro-batch, and their records by offsets.

    Parameters
    ----------
    batches
        The ranges of the sealed batches, oldest first. Their segments are those of one epoch.
    """

    batches: tuple[tuple[OffsetRange, ...], ...] = ()

    @property
    def signs(self) -> Sequence[Sign]:
        """How Spark's messages show that the log's storage failed."""
        return _SIGNS

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        """Return the stream of the sealed batches; their number and size were decided when they were landed."""
        return stream_of_cuts(self.spark, _Segments(self.log.path, self.segments), start or {}, self.batches)


@dataclass(frozen=True)
class _Segments:
    """What :class:`LogReader` reads, without Spark: it is pickled."""

    path: str
    segments: tuple[Segment, ...]

    def input(self, ranges: Sequence[OffsetRange]) -> Input:
        chosen = tuple(s for s in self.segments if any(s.range.cut(r) for r in ranges))
        return LogInput(self.path, chosen, whole=False)  # of a sealed batch, all segments are known


def layers(
    segments: Sequence[Segment], ranges: Sequence[OffsetRange]
) -> list[tuple[tuple[Segment, ...], list[OffsetRange]]]:
    """Return the segments in layers that do not overlap themselves, each with what of the ranges is to be read from it.

    A reset may let the same offsets be landed once more, in another epoch. Each offset is read from the newest one.
    """
    inside = sorted(segments, key=lambda s: s.range)
    if not any(a.range.cut(b.range) for a, b in pairwise(inside)):
        return [(tuple(segments), list(ranges))]
    found, rest = list[tuple[tuple[Segment, ...], list[OffsetRange]]](), list(ranges)
    for epoch in sorted({s.epoch for s in inside}, reverse=True):
        layer = tuple(s for s in inside if s.epoch == epoch)
        parts = overlaps(rest, [s.range for s in layer])
        if parts:
            found.append((layer, parts))
        rest = subtract(rest, parts)
    return found


def _covered(span: OffsetRange, ranges: Sequence[OffsetRange]) -> bool:
    return sum(len(common) for r in ranges if (common := span.cut(r))) == len(span)
