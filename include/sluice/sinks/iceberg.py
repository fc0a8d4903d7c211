"""The key ``sink.iceberg`` of a pipeline file."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from pydantic import AfterValidator

from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["KIND", "IcebergSink"]


def _table(name: str) -> str:
    if "." not in name or not all(name.split(".")):
        raise ValueError(f"{name!r}: write NAMESPACE.TABLE")
    return name


class IcebergSink(SinkConfig):
    """An Iceberg table. Each batch is one snapshot, together with its batch number."""

    catalog: str = "iceberg_default"
    """The id of an Airflow connection of type ``iceberg``; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    table: Annotated[str, AfterValidator(_table)]
    """``NAMESPACE.TABLE``. The first run creates it, not partitioned."""

    @property
    def location(self) -> str:
        """A name for it; its files are where its catalog says."""
        return f"iceberg/{self.catalog}/{quote(self.table, safe='.-_')}"

    @property
    def shown(self) -> str:
        """Table and catalog."""
        return f"{self.table} ({self.catalog})"

    @property
    def needs(self) -> str:
        """The catalog's connection."""
        return self.catalog


KIND = SinkKind(
    config=IcebergSink,
    open="sluice_spark.sinks.iceberg.table:opened",
    transactional=True,
    replaceable=True,
    readable=True,
    by_value=True,
    outputs=("append", "update", "complete"),
    stages_parquet=True,
)
