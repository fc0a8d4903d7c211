"""Reads records from the cached batch instead of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sluice.errors import SluiceError
from sluice.ranges import OffsetRange
from sluice_spark.sources.base import Records, within

__all__ = ["HeldRecords"]


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
