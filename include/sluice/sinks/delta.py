"""The key ``sink.delta`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import ByteSize, Field, TypeAdapter, model_validator

from sluice.fields import TablePath
from sluice.sinks.base import SinkKind
from sluice.sinks.upsert import UpsertConfig

__all__ = ["KIND", "DeltaSink"]


class DeltaSink(UpsertConfig):
    """A Delta table; a relative path is relative to ``SLUICE_HOME``."""

    path: TablePath
    """Relative to ``SLUICE_HOME``, absolute, or a URL. The quarantine is by default beside it: ``PATH_quarantine``."""
    partition_by: list[str] = Field(default=[])
    """Partition columns of the table; fixed when the table is created."""
    evolve: Literal["refuse", "add", "widen"] = "refuse"
    """What happens to columns that only the pipeline has: ``refuse``, or ``add`` them in the commit of the batch.
    ``widen`` adds them, too, and rewrites the table's files if the pipeline has a wider type of one of its columns."""
    widen_up_to: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)? ?[KMGT]i?B$")] = "10GB"
    """The greatest size of a table whose files are rewritten for a wider type, such as ``500MB`` or ``2TB``."""

    @model_validator(mode="after")
    def _whole(self) -> DeltaSink:
        if doubled := [name for name in self.partition_by if self.partition_by.count(name) > 1]:
            raise ValueError(f"partition_by: {doubled[0]} appears twice")
        if self.keyed and self.partition_by:
            raise ValueError(
                "mode: upsert cannot merge into a partitioned table yet: leave partition_by out, or choose mode: append"
            )
        return self

    def undeletable(self, columns: Collection[str]) -> str | None:
        """Return why tombstones cannot delete; also if deleted keys would have to be remembered."""
        if not self.by_offset:
            return (
                "nothing in a Delta table remembers the sequence of a deleted key, so a late record would bring its "
                "row back: choose sequence: _offset, or sink.postgres, which remembers it"
            )
        return super().undeletable(columns)

    @property
    def widened_bytes(self) -> int:
        """``widen_up_to`` in bytes."""
        return int(TypeAdapter(ByteSize).validate_python(self.widen_up_to))

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
    by_value=True,
    outputs=("append", "update", "complete"),
    stages_parquet=True,
    evolves=True,
)
