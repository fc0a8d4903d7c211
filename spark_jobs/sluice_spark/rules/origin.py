"""What the header of a mirrored record must be."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.sources.measurable import Topics
from sluice_spark.decoders.base import COLUMN, RULE

__all__ = ["judged", "origin_of"]

ORIGIN = "origin"
"""The name of the rule."""


def origin_of(header: str) -> Column:
    """Return where a record says that it came from: the first header of this name, as text; null if there is none."""
    own = F.filter(F.col("headers"), lambda h: h["key"] == header)
    return F.try_element_at(own, F.lit(1))["value"].cast("string")


def judged(decoded: DataFrame, kafka: Topics) -> DataFrame:
    """Refuse decoded records whose header names no record of the pipeline's streams, or that lack a header."""
    pattern, header = kafka.origins, kafka.origin_header
    if pattern is None or header is None:
        return decoded
    origin = origin_of(header)
    wrong = F.coalesce(~origin.rlike(pattern), F.lit(False))
    if kafka.origin_required:
        wrong = wrong | (origin.isNull() & F.col("topic").contains(":"))
    return decoded.withColumns(
        {
            RULE: F.when(wrong, F.lit(ORIGIN)).otherwise(F.col(RULE)),
            COLUMN: F.when(wrong, F.lit(header)).otherwise(F.col(COLUMN)),
        }
    )
