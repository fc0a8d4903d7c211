"""Counts records per partition in the pass that writes them, and in a pass of its own where that cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from sluice.ranges import OffsetRange
from sluice_spark.decode import RULE

__all__ = ["OUTSIDE", "ReadTally"]

Key = tuple[str, int]

_SPREAD = 1_000_000  # more than the partitions of any topic
_FIRST = "__sluice_first"
OUTSIDE = "__sluice_outside"
"""True for a record that was read and is not asked for; the column may be missing."""
_ROW_IN_TASK = (1 << 33) - 1


class _Figures(NamedTuple):
    read: dict[Key, int]
    bad: dict[Key, int]
    outside: dict[Key, int]


class ReadTally:
    """Observes a decoded batch on its way: how many records per partition were read, how many broke a rule, and
    how many were not asked for (:data:`OUTSIDE`).

    ``histogram_numeric`` is exact as long as it has a bin for each distinct value (it merges bins only beyond that),
    so one aggregate counts any number of partitions. Where two tasks read one partition, its bins are merged by a
    weighted mean, so a value comes back beside the integer that it was: as a double it can be rounded, as an integer
    Spark would have cut it. The figures are those of the first action on :attr:`frame`.

    What passed by is what was read only when each task passed by once and to its end, and that is the transform's plan
    to decide: ``ORDER BY`` samples its input first, an executor that dies with shuffled rows has them made again,
    ``LIMIT`` stops early, a join with nothing does not read at all. So each task's first record is counted too, and
    unless there is one for each task and no offset is missing, the batch is counted in a pass of its own: a topic whose
    offsets have gaps is read twice, once without decoding.
    """

    def __init__(self, decoded: DataFrame, ranges: Sequence[OffsetRange]) -> None:
        topics = sorted({r.topic for r in ranges})
        self._decoded = decoded
        self._expected = {(r.topic, r.partition): len(r) for r in ranges}
        self._keys = {
            topics.index(r.topic) * _SPREAD + r.partition: (r.topic, r.partition) for r in ranges
        }  # fmt: skip
        key: Column = F.col("partition")
        for number, topic in enumerate(topics[1:], start=1):
            key = F.when(F.col("topic") == topic, F.col("partition") + number * _SPREAD).otherwise(key)
        key = key.cast("double")
        bins = F.lit(max(2, len(self._keys)))
        is_first = F.monotonically_increasing_id().bitwiseAND(_ROW_IN_TASK) == 0
        self._observation = Observation()
        self.frame = decoded.withColumn(_FIRST, F.when(is_first, F.spark_partition_id())).observe(
            self._observation,
            F.histogram_numeric(key, bins).alias("read"),
            F.histogram_numeric(F.when(F.col(RULE).isNotNull(), key), bins).alias("bad"),
            F.histogram_numeric(F.when(self._outside(), key), bins).alias("outside"),
            F.count(_FIRST).alias("passes"),
            F.size(F.collect_set(_FIRST)).alias("tasks"),
        )

    def read(self) -> Mapping[Key, int]:
        """Return the records read per partition; waits for the first action to end."""
        return self._figures.read

    def bad(self) -> Mapping[Key, int]:
        """Return the records that broke a rule per partition; waits for the first action to end."""
        return self._figures.bad

    def outside(self) -> Mapping[Key, int]:
        """Return the records per partition that were read and not asked for; waits for the first action to end."""
        return self._figures.outside

    def _outside(self) -> Column:
        return F.col(OUTSIDE) if OUTSIDE in self._decoded.columns else F.lit(False)

    @cached_property
    def _figures(self) -> _Figures:
        observed = self._observed()
        # without decoding, where offsets that are missing are all that is in doubt
        if observed and (observed.read == self._expected or [observed.read] == self._counted(F.count("*"))):
            return observed
        return _Figures(*self._counted(F.count("*"), F.count(RULE), F.count_if(self._outside())))

    def _observed(self) -> _Figures | None:
        """Return what passed by; None when nothing did, or some of it twice."""
        try:
            found = self._observation.get
        except Exception:  # Spark has no figures to give when it found the plan to be empty
            return None
        if found.get("passes") is None or found["passes"] != found["tasks"]:
            return None
        figures = _Figures({}, {}, {})
        for name, counts in zip(figures._fields, figures, strict=True):
            for each in found[name] or []:
                key = self._keys[round(each["x"])]
                counts[key] = counts.get(key, 0) + round(each["y"])
        return figures

    def _counted(self, *figures: Column) -> list[dict[Key, int]]:
        rows = self._decoded.groupBy("topic", "partition").agg(*figures).collect()
        return [{(row[0], row[1]): row[n] for row in rows if row[n]} for n in range(2, 2 + len(figures))]
