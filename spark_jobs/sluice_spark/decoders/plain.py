"""Values as they are: text, or bytes."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.decoders.config import BytesDecode, TextDecode
from sluice_spark.decoders.base import COLUMN, DATA, RULE

__all__ = ["Bytes", "Text"]


@dataclass(frozen=True)
class Bytes:
    """Key and value as they are; nothing is refused."""

    config: BytesDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Take key and value as columns."""
        nothing = F.lit(None).cast("string")
        return records.withColumns({RULE: nothing, COLUMN: nothing}).withColumn(DATA, F.struct("key", "value"))


@dataclass(frozen=True)
class Text:
    """The value as UTF-8 text."""

    config: TextDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Take the value as a column, where it is UTF-8."""
        text = F.col("value").cast("string")
        rule = F.when(F.col("value").isNull(), "null_value").when(~F.is_valid_utf8(text), "utf8")
        return records.withColumns(
            {RULE: rule, COLUMN: F.lit(None).cast("string"), DATA: F.struct(text.alias("value"))}
        )
