"""One batch of a pipeline with an aggregate: write the groups that it changed, or all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.pipeline.aggregate import Aggregate
from sluice_spark.batch.results import ResultWriter
from sluice_spark.batch.stateful import Opening, Seen
from sluice_spark.batch.writer import PreparedBatch
from sluice_spark.columns import column
from sluice_spark.windows.aggregate import groups_of, overflowing

__all__ = ["KEYLESS", "AggregateWriter"]

KEYLESS = "group_key_missing"
"""The rule by which a record of a group without a key goes to the quarantine, before a topic."""


@dataclass(frozen=True)
class AggregateWriter(ResultWriter):
    """Prepares and commits the batches of a pipeline with an aggregate. It emits groups."""

    @property
    def operator(self) -> Aggregate:
        """The pipeline's aggregate."""
        assert self.pipeline.aggregate is not None
        return self.pipeline.aggregate

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that tell one row from another."""
        return self.operator.by

    @property
    def time(self) -> str:
        """The column with the record time; nothing goes by it."""
        return self.operator.time

    def opened(self, opening: Opening) -> Self:
        """Return the writer for the batches of an epoch."""
        return self.checked(opening)

    def emit(self, records: DataFrame) -> DataFrame:
        """Return the stream of groups, from the stream of records."""
        rows = self.transformed(self.decoded(records))
        return groups_of(rows.where(self.strange(F.current_timestamp()).isNull()), self.operator)

    def strange(self, now: Column) -> Column:
        """Return the rule that a row breaks; a topic has no newest record of a group without a key."""
        rule = overflowing(self.operator.aggregates, self.taken)
        if self.pipeline.sink.key != "kafka":
            return rule
        (key,) = self.operator.by
        return F.coalesce(F.when(column(key).isNull(), F.lit(KEYLESS)), rule)

    def blamed(self, rule: Column) -> Column:
        """Return the name of the column by which a row breaks a rule."""
        return F.when(rule == KEYLESS, F.lit(", ".join(self.operator.by))).otherwise(super().blamed(rule))

    def late(self) -> Column:
        """Return whether a row is late: never."""
        return F.lit(False)

    def account(self, prepared: PreparedBatch, seen: Seen) -> PreparedBatch:
        """Return the batch with what it wrote."""
        return self.moved(prepared, seen, operator=self.operator.key)
