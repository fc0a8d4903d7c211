"""The key ``aggregate`` of a pipeline file: a result for each group of all rows that were ever read."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sluice.pipeline.operator import OperatorKind, StateOperator, check_columns

__all__ = ["KIND", "Aggregate"]


class Aggregate(StateOperator):
    """A running aggregation without event time. Spark's checkpoint keeps each group from run to run, for good."""

    key = "aggregate"
    said = "an aggregate"
    holding = "keeps groups"
    unredrivable = (
        "has an aggregate: a record that is redriven would have to be added to the groups that live runs keep"
    )
    moving = ()
    counted = "{keys:,} groups are kept"
    ends = "A group is kept for good"
    dropped = (
        "what the groups had absorbed is dropped: a row of the table stays until a record of its group comes, and is "
        "then of the records since. --truncate with an earlier --from aggregates all records again"
    )

    by: tuple[str, ...] = ()
    """Columns of the transform's result: each combination of their values is a group. None: one group of all rows."""
    aggregates: Annotated[dict[str, str], Field(min_length=1)]
    """The sink's other columns: a SQL aggregate over the transform's result for each name."""
    output: Literal["update", "complete"] = "update"
    """Which groups a batch writes: ``update``, those that it changed, in place of their earlier rows; ``complete``, all
    of them, in place of the whole table."""

    @model_validator(mode="after")
    def _sound(self) -> Aggregate:
        check_columns(self.key, self.columns)
        return self

    @property
    def columns(self) -> list[str]:
        """The sink's columns, without ``_run``."""
        return [*self.by, *self.aggregates]

    @property
    def time(self) -> str:
        """The record time, for the notes of batches: no record is late."""
        return "_timestamp"

    @property
    def hold(self) -> None:
        """Nothing: there is no watermark."""

    @property
    def identity(self) -> tuple[str, ...]:
        """``by``."""
        return self.by

    @property
    def writes(self) -> str:
        """``output``."""
        return self.output

    @property
    def grouping(self) -> tuple[str, ...]:
        """``by``."""
        return self.by

    @property
    def delay(self) -> timedelta:
        """Nothing: there is no watermark."""
        return timedelta(0)

    @property
    def definition(self) -> dict[str, Any]:
        """The settings that may not change while there are groups."""
        return {
            "by": list(self.by),
            "aggregates": [[name, " ".join(text.split())] for name, text in self.aggregates.items()],
            "output": self.output,
        }


KIND = OperatorKind(
    Aggregate,
    "sluice_spark.batch.aggregate:AggregateWriter",
    "sluice_spark.windows.aggregate:check_groups",
    "sluice_spark.windows.state:groups",
)
