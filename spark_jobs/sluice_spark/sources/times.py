"""Reads only the record times of ranges."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as F

from sluice.ranges import OffsetRange, Times
from sluice_spark.sources.base import Records

__all__ = ["times_of"]

_FINEST = 10_000
_MOST = 1_000


def times_of(source: Records, ranges: Sequence[OffsetRange]) -> list[Times]:
    """Return the record times of these ranges, in pieces of some thousand offsets.

    Raises
    ------
    PySparkException
        If reading fails.
    """
    width = max(_FINEST, sum(map(len, ranges)) // _MOST)
    time = F.unix_millis("timestamp")
    rows = (
        source.read(ranges)
        .groupBy("topic", "partition", F.floor(F.col("offset") / F.lit(width)).alias("piece"))
        .agg(F.min(time), F.max(time))
        .collect()
    )
    seen = {(row[0], row[1], row[2]): (row[3], row[4]) for row in rows}
    found = []
    for r in ranges:
        for piece in range(r.start // width, -(-r.end // width)):
            part = r.cut(OffsetRange(r.topic, r.partition, piece * width, (piece + 1) * width))
            key = (r.topic, r.partition, piece)
            if part is not None:
                found.append(Times(part, *seen[key]) if key in seen else Times.none(part))
    return found
