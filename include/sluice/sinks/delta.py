"""The key ``sink.delta`` of a pipeline file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["KIND", "DeltaSink"]


class DeltaSink(SinkConfig):
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
