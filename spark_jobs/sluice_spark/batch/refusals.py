"""Records whose rows the sink refuses: the batch is prepared again without them, and they go to the quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.decoders.explain import SINK
from sluice_spark.batch.split import blamed
from sluice_spark.sinks.base import Refusal

__all__ = ["NONE_REFUSED", "Refusals"]

_DETAIL = "__sluice_detail"


@dataclass(frozen=True)
class Refusals:
    """The records of refused rows, by topic, partition and offset, with what the sink says."""

    records: Mapping[tuple[str, int, int], Refusal] = field(default_factory=dict, repr=False)

    def __or__(self, more: Mapping[tuple[str, int, int], Refusal]) -> Refusals:
        """Return these, and more."""
        return Refusals({**self.records, **more})

    def judged(self, decoded: DataFrame) -> DataFrame:
        """Return decoded records in which the refused ones break the rule :data:`SINK`."""
        if not self.records:
            return decoded
        return blamed(decoded, self._frame(decoded.sparkSession), F.lit(SINK), F.col("column"))

    def told(self, refused: DataFrame) -> DataFrame:
        """Return rows of the quarantine, those of refused rows with the words of the sink."""
        if not self.records:
            return refused
        names = ["_topic", "_partition", "_offset"]
        both = refused.join(self._frame(refused.sparkSession).drop("column"), names, "left")
        error = F.col("_errors")[0]
        told = {"_errors": F.array(error.withField("detail", F.coalesce(F.col(_DETAIL), error["detail"])))}
        return both.select(*(told.get(name, F.col(name)).alias(name) for name in refused.columns))

    def _frame(self, spark: SparkSession) -> DataFrame:
        topics, partitions, offsets = zip(*self.records, strict=True)
        rows = pa.table(
            {
                "_topic": pa.array(topics, pa.string()),
                "_partition": pa.array(partitions, pa.int32()),
                "_offset": pa.array(offsets, pa.int64()),
                "column": pa.array([why.column for why in self.records.values()], pa.string()),
                _DETAIL: pa.array([why.detail for why in self.records.values()], pa.string()),
            }
        )
        return spark.createDataFrame(rows)


NONE_REFUSED = Refusals()
