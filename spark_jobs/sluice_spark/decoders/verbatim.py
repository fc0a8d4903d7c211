"""Decoders that keep the value unchanged, as text or as bytes."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.decoders.config import BytesDecode, TextDecode
from sluice_spark.decoders.base import COLUMN, DATA, RULE

__all__ = ["Bytes", "Text"]


@dataclass(frozen=True)
class Bytes:
    """Key and value unchanged; no record is refused."""

    config: BytesDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Return key and value as columns."""
        nothing = F.lit(None).cast("string")
        return records.withColumns({RULE: nothing, COLUMN: nothing}).withColumn(DATA, F.struct("key", "value"))


@dataclass(frozen=True)
class Text:
    """The value as UTF-8 text; other records are refused."""

    config: TextDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Return the value as a column if it is valid UTF-8."""
        text = F.col("value").cast("string")
        rule = F.when(F.col("value").isNull(), "null_value").when(~F.is_valid_utf8(text), "utf8")
        return records.withColumns(
            {RULE: rule, COLUMN: F.lit(None).cast("string"), DATA: F.struct(text.alias("value"))}
        )
