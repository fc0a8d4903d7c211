"""How finely Spark shuffles the rows of a slice while they are judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["few_shares"]

_SHARES = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_DEFAULT = "spark.sql.shuffle.partitions"
_ROWS = 25_000
_FEWEST = 8


@contextmanager
def few_shares(spark: SparkSession, rows: int) -> Iterator[None]:
    """Let Spark divide so many rows into few shares when it shuffles them; the setting is put back at the end.

    Spark divides any rows, however few, into ``spark.sql.shuffle.partitions`` shares (200) and joins small ones
    afterwards. That is a part of the time of a small judgement. Only queries with adaptive
    execution read the setting; stateful streaming queries, whose number of shares must not change, are none of them.

    Parameters
    ----------
    rows
        How many are judged. There is a share for each 25,000 of them, and never more than without this.
    """
    shares = max(_FEWEST, -(-rows // _ROWS))
    try:
        before = spark.conf.get(_SHARES, None)
        most = before or spark.conf.get(_DEFAULT, None)
        fewer = most is not None and most.isdigit() and shares < int(most)
        if fewer:
            spark.conf.set(_SHARES, str(shares))
    except PySparkException:  # a server may refuse it: it only saves time
        fewer = False
    try:
        yield
    finally:
        if fewer:
            spark.conf.set(_SHARES, before) if before else spark.conf.unset(_SHARES)
