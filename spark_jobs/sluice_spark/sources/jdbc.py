"""Rows of a database's table, or lines of a socket, as a source: they are read from where they were landed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import OffsetRange, Positions, describe
from sluice.sources.jdbc.config import JdbcSource
from sluice.sources.jdbc.source import TableRows
from sluice.sources.landed.intake import Part
from sluice.sources.socket.config import SocketSource
from sluice.sources.socket.source import Lines
from sluice.sources.state import TopicState
from sluice.wal import Segment
from sluice_spark.engine.failures import Sign, classify
from sluice_spark.sources import ranged
from sluice_spark.sources.inputs import Input
from sluice_spark.sources.log_input import LogInput
from sluice_spark.sources.ranged import frame_of, stream_of

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


class JdbcReader:
    """Reads the landed rows of a pipeline.

    Parameters
    ----------
    source
        The open table, or the open socket.
    """

    signs: Sequence[Sign] = ()

    def __init__(self, spark: SparkSession, config: JdbcSource | SocketSource, source: TableRows | Lines) -> None:
        self.spark = spark
        self.intake = source.intake

    @property
    def _rows(self) -> LandedRows:
        return LandedRows(str(self.intake.rows), self.intake.parts)

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        """Return the stream of all rows; see :class:`~sluice_spark.sources.base.SourceReader`."""
        return stream_of(self.spark, self._rows, max_records, start=start, states=states)

    def batch_end(self, start: Positions, ends: Positions, limit: int) -> Positions:
        """Return where a batch ends; see :class:`~sluice_spark.sources.base.Foreseeable`."""
        return ranged.batch_end(start, ends, limit)

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, including headers."""
        return frame_of(self.spark, self._rows, ranges)

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return the files: workers can read all ranges from them."""
        return [(self._rows.input(ranges), list(ranges))]

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that are not kept any more."""
        return [gone for span in ranges for gone in self.intake.missing(span)]

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Do nothing: a file that lacks rows cannot be read."""

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Look for files that are gone first, whatever the error says."""
        return classify(error, lambda: self._refuse(ranges), self.signs)

    def _refuse(self, ranges: Sequence[OffsetRange]) -> None:
        gone = self.missing(ranges)
        if gone:
            raise OffsetsGoneError(
                f"landed rows are gone from {self.intake.rows}: {describe(gone)}",
                state="batches that were committed are in the sink; nothing of this one is",
                next_step="put the files back; or run with --recovery ignore_range, which records them as lost",
                ranges=gone,
            )
