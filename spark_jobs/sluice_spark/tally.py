"""Counts records per partition in the pass that writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from sluice.ranges import OffsetRange
from sluice_spark.decode import RULE

__all__ = ["ReadTally"]

_SPREAD = 1_000_000  # more than the partitions of any topic


class ReadTally:
    """Observes a decoded batch on its way: how many records were read and how many broke a rule, per partition.

    ``histogram_numeric`` is exact as long as it has a bin for each distinct value (it merges bins only beyond that),
    so one aggregate counts any number of partitions. Where two tasks read one partition, its bins are merged by a
    weighted mean, so a value comes back beside the integer that it was: as a double it can be rounded, as an integer
    Spark would have cut it. The figures are those of the first action on :attr:`frame`.
    """

    def __init__(self, decoded: DataFrame, ranges: Sequence[OffsetRange]) -> None:
        topics = sorted({r.topic for r in ranges})
        self._keys = {
            topics.index(r.topic) * _SPREAD + r.partition: (r.topic, r.partition) for r in ranges
        }  # fmt: skip
        key: Column = F.col("partition")
        for number, topic in enumerate(topics[1:], start=1):
            key = F.when(F.col("topic") == topic, F.col("partition") + number * _SPREAD).otherwise(key)
        key = key.cast("double")
        bins = F.lit(max(2, len(self._keys)))
        self._observation = Observation()
        self.frame = decoded.observe(
            self._observation,
            F.histogram_numeric(key, bins).alias("read"),
            F.histogram_numeric(F.when(F.col(RULE).isNotNull(), key), bins).alias("bad"),
        )

    def read(self) -> Mapping[tuple[str, int], int]:
        """Return the records read per partition; waits for the first action to end."""
        return self._counts("read")

    def bad(self) -> Mapping[tuple[str, int], int]:
        """Return the records that broke a rule per partition; waits for the first action to end."""
        return self._counts("bad")

    def _counts(self, name: str) -> dict[tuple[str, int], int]:
        counts: dict[tuple[str, int], int] = {}
        for each in self._observation.get[name] or []:
            key = self._keys[round(each["x"])]
            counts[key] = counts.get(key, 0) + round(each["y"])
        return counts
