"""Tells copies of records from new ones, where a pipeline has several clusters that mirror each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice.run.origins import Origins, Screened, Settled, screened
from sluice_spark.decoders.base import COLUMN, RULE
from sluice_spark.rules.origin import origin_of
from sluice_spark.sources.base import Records

__all__ = ["COPY", "Screen", "marked"]

COPY = "__sluice_copy"
"""Whether a record is a copy."""


@dataclass(frozen=True)
class Screen:
    """Looks through the records of a batch before it is processed.

    Parameters
    ----------
    settled
        Returns what is settled, whenever it is asked.
    """

    pipeline: Pipeline
    settled: Callable[[], Settled]

    def look(self, source: Records, ranges: Sequence[OffsetRange]) -> Screened:
        """Return which records of these ranges are copies; reads their headers."""
        pattern, kafka = self.pipeline.origins, self.pipeline.source.kafka
        if pattern is None or kafka is None or kafka.origin_header is None or not ranges:
            return Screened()
        origin = origin_of(kafka.origin_header)
        parts = [F.regexp_extract(origin, pattern, group).alias(name) for group, name in enumerate("stn", 1)]
        found = source.read(ranges).where(origin.rlike(pattern)).select("topic", "partition", "offset", *parts)
        rows = found.select(
            "topic", "partition", "offset", "s", F.col("t").cast("int").alias("t"), F.col("n").cast("long").alias("n")
        ).toArrow()
        columns = [rows.column(name).to_pylist() for name in ("topic", "partition", "offset", "s", "t", "n")]
        return screened(Origins(*columns), self.settled(), ranges)


def marked(records: DataFrame, found: Screened) -> DataFrame:
    """Add :data:`COPY` to decoded records. A copy breaks no rule: it was judged where it came from."""
    spark = records.sparkSession
    rows = pa.table(
        {
            "__copy_topic": pa.array([key[0] for key, at in found.copies.items() for _ in at], pa.string()),
            "__copy_partition": pa.array([key[1] for key, at in found.copies.items() for _ in at], pa.int32()),
            "__copy_offset": pa.array([o for at in found.copies.values() for o in at.tolist()], pa.int64()),
        }
    )
    copies = F.broadcast(spark.createDataFrame(rows))
    here = (
        (F.col("topic") == F.col("__copy_topic"))
        & (F.col("partition") == F.col("__copy_partition"))
        & (F.col("offset") == F.col("__copy_offset"))
    )
    is_copy = F.col("__copy_topic").isNotNull()
    joined = records.join(copies, here, "left").withColumn(COPY, is_copy).drop(*rows.column_names)
    return joined.withColumns({name: F.when(~F.col(COPY), F.col(name)) for name in (RULE, COLUMN)})
