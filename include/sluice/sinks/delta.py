"""The key ``sink.delta`` of a pipeline file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["KIND", "DeltaSink"]


class DeltaSink(SinkConfig):
    """A Delta table; a relative path is relative to ``SLUICE_HOME``."""

    path: Annotated[str, Field(min_length=1)]
    """Relative to ``SLUICE_HOME``, absolute, or a URL. The quarantine is by default beside it: ``PATH_quarantine``."""
    partition_by: list[str] = Field(default=[])
    """Partition columns of the table; fixed when the table is created."""

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
)
