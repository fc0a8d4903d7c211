"""The key ``sink.postgres`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import AfterValidator, model_validator

from sluice.sinks.base import SinkConfig, SinkKind

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


class PostgresSink(SinkConfig):
    """A table of a PostgreSQL database. Each batch is one transaction, together with its batch number."""

    connection: str = "postgres_default"
    """The id of an Airflow connection of type ``postgres``; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    table: Annotated[str, AfterValidator(_table)]
    """``TABLE`` or ``SCHEMA.TABLE``, as the catalog writes them, without quotes. The first run creates it."""
    mode: Literal["append", "upsert"] = "append"
    """What a row does: ``append`` adds it, ``upsert`` replaces the row of the same key if it is newer."""
    key: tuple[str, ...] = ()
    """With ``upsert``, the columns that identify a row; a table that is there needs a unique index on them."""
    sequence: str | None = None
    """With ``upsert``, the column by which one of two rows is newer; by default the offset is."""

    @model_validator(mode="after")
    def _keyed(self) -> PostgresSink:
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode: upsert needs the key: the columns that identify a row, for example key: [id]")
        if self.mode == "append" and (self.key or self.sequence):
            raise ValueError("key and sequence are for mode: upsert: add it, or remove them")
        if len(set(self.key)) < len(self.key):
            raise ValueError("a column stands twice in the key")
        return self

    def of(self, kind: SinkKind) -> SinkKind:
        """Return what it can do: rows that replaced others do not come back, so intervals are not replaced."""
        return replace(kind, replaceable=False) if self.mode == "upsert" else kind

    @property
    def keyed(self) -> bool:
        """Whether it is ``upsert``."""
        return self.mode == "upsert"

    @property
    def deletes(self) -> bool:
        """Whether it is ``upsert``."""
        return self.keyed

    def undeletable(self, columns: Collection[str]) -> str | None:
        """Return why tombstones cannot delete: the key, or what tells the newer row, is among these columns."""
        for name in self.key:
            if name in columns:
                return (
                    f"{name!r} of the key is a column of the record's value, which a tombstone does not have: make it "
                    "of the record's key, in transform.sql or by its name in decode"
                )
        if self.sequence in columns:
            return (
                f"sequence: {self.sequence!r} is a column of the record's value, which a tombstone does not have: "
                f"give tombstones one in transform.sql, such as coalesce({self.sequence}, …) AS {self.sequence}, take "
                "a header, or leave sequence out: then offsets decide"
            )
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
    stages_parquet=True,
)
