"""Made-up rows as a source: whoever reads a range makes its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice.ranges import OffsetRange
from sluice.sources.rate.config import RateSource
from sluice.sources.rate.source import Clockwork, MadeUp
from sluice_spark.sources.inputs import RECORDS, UTC, Headers
from sluice_spark.sources.range_source import RangedReader

__all__ = ["RateChunk", "RateInput", "RateRanges", "RateReader"]

_RECORDS = 50_000


@dataclass(frozen=True)
class RateChunk:
    """Some rows of one partition, in the order of their offsets.

    Parameters
    ----------
    offsets
        Ascending, as a NumPy array.
    """

    span: OffsetRange
    clockwork: Clockwork
    offsets: Any

    @cached_property
    def _micros(self) -> Any:
        return self.clockwork.time(self.offsets)

    @property
    def times(self) -> Any:
        """When each row comes, in milliseconds since 1970."""
        return self._micros // 1000

    @cached_property
    def _values(self) -> pa.Array:
        number = self.offsets * self.clockwork.partitions + self.span.partition
        moment = pc.strftime(pa.array(self._micros).cast(UTC), format="%Y-%m-%dT%H:%M:%SZ", locale="C")
        parts = ('{"value":', pa.array(number).cast(pa.string()), ',"timestamp":"', moment, '"}', "")
        return pc.binary_join_element_wise(*parts).cast(pa.binary())

    def values(self) -> list[bytes | None]:
        """Return the rows, as JSON."""
        found: list[bytes | None] = self._values.to_pylist()
        return found

    def keys(self) -> list[bytes | None]:
        """Return no keys."""
        return [None] * len(self.offsets)

    def headers(self) -> list[Headers]:
        """Return no headers."""
        return [None] * len(self.offsets)

    def chosen(self, numbers: Any) -> RateChunk:
        """Return the rows with these numbers in the chunk, which ascend."""
        return RateChunk(self.span, self.clockwork, self.offsets[numbers])

    def records(self) -> pa.Table:
        """Return the rows as records."""
        count = len(self.offsets)
        return pa.Table.from_arrays(
            [
                pa.nulls(count, pa.binary()),
                self._values,
                pa.nulls(count, RECORDS.field("headers").type),
                pa.repeat(pa.scalar(self.span.topic, pa.string()), count),
                pa.repeat(pa.scalar(self.span.partition, pa.int32()), count),
                pa.array(self.offsets, pa.int64()),
                pa.array(self._micros, pa.int64()).cast(UTC),
                pa.repeat(pa.scalar(0, pa.int32()), count),
            ],
            schema=RECORDS,
        )


@dataclass(frozen=True)
class RateInput:
    """What makes rows."""

    clockwork: Clockwork

    def opened(self) -> AbstractContextManager[RateRanges]:
        """Open nothing."""
        return nullcontext(RateRanges(self.clockwork))

    def input(self, ranges: Sequence[OffsetRange]) -> RateInput:
        """Return itself: it makes the rows of all ranges."""
        return self


@dataclass(frozen=True)
class RateRanges:
    """Makes one range after another."""

    clockwork: Clockwork

    def read(self, span: OffsetRange) -> Iterator[RateChunk]:
        """Yield the rows of a range."""
        for start in range(span.start, span.end, _RECORDS):
            offsets = np.arange(start, min(start + _RECORDS, span.end), dtype=np.int64)
            yield RateChunk(span, self.clockwork, offsets)


class RateReader(RangedReader):
    """Makes the rows of a pipeline.

    Parameters
    ----------
    source
        What says when they come.
    """

    def __init__(self, spark: SparkSession, config: RateSource, source: MadeUp) -> None:
        self.spark = spark
        self.ranged = RateInput(source.clockwork)
