"""Rows of a database's table, or lines of a socket, as a source: they are read from where they were landed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sluice.errors import OffsetsGoneError
from sluice.ranges import OffsetRange, describe
from sluice.sources.jdbc.config import JdbcSource
from sluice.sources.jdbc.source import TableRows
from sluice.sources.landed.intake import Part
from sluice.sources.socket.config import SocketSource
from sluice.sources.socket.source import Lines
from sluice.wal import Segment
from sluice_spark.sources.log_input import LogInput
from sluice_spark.sources.range_source import RangedReader

__all__ = ["JdbcReader", "LandedRows"]


@dataclass(frozen=True)
class LandedRows:
    """Where landed rows can be read: their files are read as those of the write-ahead log.

    Parameters
    ----------
    folder
        The folder of the files.
    parts
        The files that were there when the run was planned.
    """

    folder: str
    parts: tuple[Part, ...]

    def input(self, ranges: Sequence[OffsetRange]) -> LogInput:
        """Return the files that have rows of these ranges."""
        (stream,) = {span.topic for span in ranges} or {""}
        chosen = [p for p in self.parts if any(p.start < span.end and p.end > span.start for span in ranges)]
        handles = (
            Segment(p.name, OffsetRange(stream, 0, p.start, p.end), 0, p.rows, p.first, p.last, 0) for p in chosen
        )
        return LogInput(self.folder, tuple(handles))


class JdbcReader(RangedReader):
    """Reads the landed rows of a pipeline.

    Parameters
    ----------
    source
        The open table, or the open socket.
    """

    def __init__(self, spark: SparkSession, config: JdbcSource | SocketSource, source: TableRows | Lines) -> None:
        self.spark = spark
        self.intake = source.intake

    @property
    def ranged(self) -> LandedRows:  # type: ignore[override]
        """The files that are landed now."""
        return LandedRows(str(self.intake.rows), self.intake.parts)

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that are not kept any more."""
        return [gone for span in ranges for gone in self.intake.missing(span)]

    def refuse(self, ranges: Sequence[OffsetRange]) -> None:
        """Refuse to go on if a part of these ranges is gone."""
        gone = self.missing(ranges)
        if gone:
            raise OffsetsGoneError(
                f"landed rows are gone from {self.intake.rows}: {describe(gone)}",
                state="batches that were committed are in the sink; nothing of this one is",
                next_step="put the files back; or run with --recovery ignore_range, which records them as lost",
                ranges=gone,
            )
