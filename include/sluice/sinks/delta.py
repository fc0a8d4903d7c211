"""The key ``sink.delta`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sluice.sinks.base import SinkKind
from sluice.sinks.upsert import UpsertConfig

__all__ = ["KIND", "DeltaSink"]


class DeltaSink(UpsertConfig):
    """A Delta table; a relative path is relative to ``SLUICE_HOME``."""

    path: Annotated[str, Field(min_length=1)]
    """Relative to ``SLUICE_HOME``, absolute, or a URL. The quarantine is by default beside it: ``PATH_quarantine``."""
    partition_by: list[str] = Field(default=[])
    """Partition columns of the table; fixed when the table is created."""
    evolve: Literal["refuse", "add"] = "refuse"
    """What happens to columns that only the pipeline has: ``refuse``, or ``add`` them in the commit of the batch."""

    @field_validator("evolve", mode="before")
    @classmethod
    def _no_widening(cls, value: Any) -> Any:
        if value == "widen":
            raise ValueError(
                "'widen' is not possible in a Delta table: the table feature that it needs, typeWidening, is refused "
                "by delta-rs, which commits. Write add, and give wider values a column of a new name"
            )
        return value

    @model_validator(mode="after")
    def _whole(self) -> DeltaSink:
        if self.keyed and self.partition_by:
            raise ValueError(
                "mode: upsert cannot merge into a partitioned table yet: leave partition_by out, or choose mode: append"
            )
        return self

    def undeletable(self, columns: Collection[str]) -> str | None:
        """Return why tombstones cannot delete; also if deleted keys would have to be remembered."""
        if self.sequence is not None:
            return (
                "nothing in a Delta table remembers the sequence of a deleted key, so a late record would bring its "
                "row back: leave sequence out, then offsets decide; or choose sink.postgres, which remembers it"
            )
        return super().undeletable(columns)

    @property
    def location(self) -> str:
        """``path``."""
        return self.path

    @property
    def partition_columns(self) -> list[str]:
        """``partition_by``."""
        return self.partition_by


KIND = SinkKind(
    config=DeltaSink,
    open="sluice_spark.sinks.delta.table:opened",
    transactional=True,
    replaceable=True,
    readable=True,
    delta=True,
    stages_parquet=True,
    evolves=True,
)
