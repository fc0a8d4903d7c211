"""The key ``sink.postgres`` of a pipeline file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from sluice.sinks.base import SinkConfig, SinkKind

__all__ = ["KIND", "PostgresSink"]

_LONGEST = 63
"""Longest identifier of PostgreSQL, in bytes; it cuts longer ones without an error."""


def _table(name: str) -> str:
    parts = name.split(".")
    if len(parts) > 2 or not all(0 < len(part.encode()) <= _LONGEST for part in parts) or "\0" in name:
        raise ValueError(f"{name!r}: write TABLE or SCHEMA.TABLE, each of at most {_LONGEST} bytes, without quotes")
    return name if len(parts) == 2 else f"public.{name}"


class PostgresSink(SinkConfig):
    """A table of a PostgreSQL database. Each batch is one transaction, together with its batch number."""

    connection: str = "postgres_default"
    """The id of an Airflow connection of type ``postgres``; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    table: Annotated[str, AfterValidator(_table)]
    """``TABLE`` or ``SCHEMA.TABLE``, as the catalog writes them, without quotes. The first run creates it."""

    @property
    def location(self) -> str:
        """Where the files of a batch are staged until it is committed, relative to ``SLUICE_HOME``."""
        return f"staged/{self.connection}/{self.table.replace('/', '%2F')}"

    @property
    def shown(self) -> str:
        """Table and connection."""
        return f"{self.table} ({self.connection})"

    @property
    def needs(self) -> str:
        """The database's connection."""
        return self.connection


KIND = SinkKind(
    config=PostgresSink,
    open="sluice_spark.sinks.postgres.table:opened",
    transactional=True,
    replaceable=True,
    readable=True,
    stages_parquet=True,
)
