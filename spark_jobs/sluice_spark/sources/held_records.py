"""Reads records from cached frames instead of the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from sluice.errors import SluiceError
from sluice.ranges import OffsetRange, subtract
from sluice_spark.sources.base import Records, within
from sluice_spark.sources.inputs import Input, inputs_of

__all__ = ["HeldRecords", "HeldWhenRead"]


@dataclass(frozen=True)
class HeldRecords:
    """The records of a cached (persisted) batch. Only the source can say which ones it no longer has.

    Parameters
    ----------
    frame
        The batch, with headers.
    source
        The source of the batch.
    """

    frame: DataFrame
    source: Records

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return these records from the cached batch."""
        return self.frame.where(within(ranges))

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts that the source no longer has."""
        return self.source.missing(ranges)

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Compare as the source does."""
        self.source.verify(read, ranges)

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Diagnose as the source does."""
        return self.source.diagnose(error, ranges)


@dataclass(frozen=True)
class HeldWhenRead:
    """The records of a source, of which Spark reads none twice. Workers read from the source itself.

    Parameters
    ----------
    hold
        Reads a frame and keeps it; returns the kept one.
    """

    source: Records
    hold: Callable[[DataFrame], DataFrame]
    _held: list[tuple[tuple[OffsetRange, ...], DataFrame]] = field(default_factory=list)

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return these records, from a frame that is kept; they are read now unless one has them."""
        kept = next((frame for had, frame in self._held if not subtract(ranges, had)), None)
        if kept is not None:
            return kept.where(within(ranges))
        frame = self.hold(self.source.read(ranges))
        self._held.append((tuple(ranges), frame))
        return frame

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return where workers can read these ranges."""
        return inputs_of(self.source, ranges)

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts that the source no longer has."""
        return self.source.missing(ranges)

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Compare as the source does."""
        self.source.verify(read, ranges)

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Diagnose as the source does."""
        return self.source.diagnose(error, ranges)
