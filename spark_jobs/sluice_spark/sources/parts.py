"""Reads records from several sources, such as Kafka and the write-ahead log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame

from sluice.errors import SluiceError
from sluice.ranges import OffsetRange, overlaps
from sluice.wal import DamagedLogError
from sluice_spark.sources.base import Records
from sluice_spark.sources.inputs import Input, inputs_of

__all__ = ["RecordsInParts"]


@dataclass(frozen=True)
class RecordsInParts:
    """Reads records from several sources, each offset from one of them.

    Parameters
    ----------
    parts
        The sources, each with the ranges that are read from it.
    """

    parts: tuple[tuple[Records, tuple[OffsetRange, ...]], ...]

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, including headers."""
        frames = [source.read(mine) for source, own in self.parts if (mine := overlaps(ranges, own))]
        return reduce(DataFrame.unionByName, frames)

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return where workers can read these ranges."""
        return [found for source, own in self.parts for found in inputs_of(source, overlaps(ranges, own))]

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that their source no longer has."""
        return [gone for source, own in self.parts for gone in source.missing(overlaps(ranges, own))]

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Compare the number of records with the known number, if all of them come from one source."""
        if len(self.parts) == 1:
            self.parts[0][0].verify(read, ranges)

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Return what the source says that knows most: damage that was found, or a source that fails, first."""
        found = [source.diagnose(error, mine) for source, own in self.parts if (mine := overlaps(ranges, own))]
        damaged = (one for one in found if isinstance(one, DamagedLogError))
        typed = (one for one in found if type(one) is not SluiceError)
        return next(damaged, None) or next(typed, None) or found[0]
