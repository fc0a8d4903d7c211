"""The key ``sink.postgres`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated
from urllib.parse import quote

from pydantic import AfterValidator

from sluice.sinks.base import SinkKind
from sluice.sinks.upsert import UpsertConfig

__all__ = ["FORGOTTEN", "KIND", "LONGEST", "PostgresSink"]

LONGEST = 63
"""Longest identifier of PostgreSQL, in bytes; it cuts longer ones without an error."""

FORGOTTEN = "sluice_deleted_"
"""What the name of the table begins with that remembers deleted keys; the rest is the name of the sink's table."""


def _table(name: str) -> str:
    parts = name.split(".")
    if len(parts) > 2 or not all(0 < len(part.encode()) <= LONGEST for part in parts) or "\0" in name:
        raise ValueError(f"{name!r}: write TABLE or SCHEMA.TABLE, each of at most {LONGEST} bytes, without quotes")
    if parts[-1] == "sluice_commits":
        raise ValueError(f"{name!r} is the name of the table that holds the commits: choose another one")
    if parts[-1].startswith(FORGOTTEN):
        raise ValueError(f"{name!r} is the name of a table that remembers deleted keys: choose another one")
    return name if len(parts) == 2 else f"public.{name}"


class PostgresSink(UpsertConfig):
    """A table of a PostgreSQL database. Each batch is one transaction, together with its batch number."""

    connection: str = "postgres_default"
    """The id of an Airflow connection of type ``postgres``; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    table: Annotated[str, AfterValidator(_table)]
    """``TABLE`` or ``SCHEMA.TABLE``, as the catalog writes them, without quotes. The first run creates it."""

    def undeletable(self, columns: Collection[str]) -> str | None:
        """Return why tombstones cannot delete; also if the table that remembers deleted keys has no name."""
        if (why := super().undeletable(columns)) is not None:
            return why
        table = self.table.split(".")[-1]
        if len((FORGOTTEN + table).encode()) > LONGEST:
            return (
                f"the table beside it that remembers deleted keys would be {FORGOTTEN}{table}, longer than the "
                f"{LONGEST} bytes of PostgreSQL: give the table a shorter name"
            )
        return None

    @property
    def location(self) -> str:
        """Where the files of a batch are staged until it is committed, relative to ``SLUICE_HOME``."""
        return f"staged/{self.connection}/{quote(self.table, safe='.-_')}"  # brackets would be a pattern of names

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
    by_value=True,
    outputs=("append", "update", "complete"),
    stages_parquet=True,
)
