"""The key ``source.jdbc`` of a pipeline file."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from sluice.fields import Duration
from sluice.sources.base import SourceConfig

__all__ = ["JdbcSource"]

_LONGEST = 63
"""Longest identifier of PostgreSQL, in bytes."""


class JdbcSource(SourceConfig):
    """Rows of a PostgreSQL table or query, by a key that grows; each row is a record, and its value a JSON object."""

    connection: str = "postgres_default"
    """The id of an Airflow connection of type ``postgres``; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    table: str | None = None
    """``TABLE`` or ``SCHEMA.TABLE``, as the catalog writes them, without quotes; a view or a partitioned table, too."""
    query: str | None = None
    """Instead of ``table``, a ``SELECT`` whose rows are read."""
    key: Annotated[str, Field(min_length=1)]
    """The column that grows: of type smallint, integer, bigint, date, timestamp or timestamptz."""
    unique: Annotated[list[str], Field(min_length=1)] | None = None
    """The columns that identify a row. By default the key, if it has a unique index, else the table's primary key."""
    lag: Duration | None = None
    """How much later than others a row may appear, after its transaction began: by default ``5m`` for times (``65m``
    for ``timestamp``, whose time zone is unknown), ``0s`` for numbers."""
    keep: Duration = timedelta(days=7)
    """How long landed rows are kept after they are in the sink, for redrives and intervals."""
    starting_offsets: Literal["earliest"] = "earliest"
    """Always ``earliest``, at the first row; to leave out old rows, write a ``query``."""

    @field_validator("table")
    @classmethod
    def _table(cls, name: str | None) -> str | None:
        if name is None:
            return None
        parts = name.split(".")
        if len(parts) > 2 or not all(0 < len(part.encode()) <= _LONGEST for part in parts) or "\0" in name:
            raise ValueError(f"{name!r}: write TABLE or SCHEMA.TABLE, each of at most {_LONGEST} bytes, without quotes")
        return name if len(parts) == 2 else f"public.{name}"

    @field_validator("query")
    @classmethod
    def _query(cls, text: str | None) -> str | None:
        if text is None:
            return None
        cut = text.strip().removesuffix(";").rstrip()
        if not re.match(r"(?i)(select|with)\b", cut):
            raise ValueError("a query begins with SELECT or WITH")
        return cut

    @model_validator(mode="after")
    def _one(self) -> JdbcSource:
        if (self.table is None) == (self.query is None):
            raise ValueError("source.jdbc needs exactly one of: table, query")
        if self.unique is not None and len(set(self.unique)) < len(self.unique):
            raise ValueError("a column stands twice in unique")
        return self

    @property
    def streams(self) -> list[str]:
        """The table's name; of a query, ``query``."""
        return [self.table or "query"]

    @property
    def shown(self) -> str:
        """Table and connection, for messages."""
        return f"{self.table or 'the query'} ({self.connection})"

    @property
    def needs(self) -> str | None:
        """The database's connection."""
        return self.connection
