"""What decoders of a schema registry's records have in common in a pipeline file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from sluice.decoders.config import Ddl, Keyed, Tombstone
from sluice.decoders.ddl import check_ddl, first_of

__all__ = ["Registered"]


class Registered(Keyed):
    """Records in the wire format of schema registries; the contract is in ``docs/decoding.md``."""

    format: ClassVar[str]

    ddl: Annotated[Ddl, Field(alias="schema")]
    """Columns and types, as in ``CREATE TABLE``: each gets the value of the record's field of the same name."""
    registry: str = "schema_registry_default"
    """The id of an Airflow connection of type ``http`` to the registry; outside Airflow ``AIRFLOW_CONN_<ID>``."""
    tombstone: Tombstone = "quarantine"
    """What a record without a value becomes: refused (``null_value``), a ``row`` of nulls, or it deletes a row."""

    @property
    def names(self) -> list[str]:
        """The declared columns."""
        return check_ddl(self.ddl)

    @field_validator("ddl")
    @classmethod
    def _there(cls, ddl: str) -> str:
        if other := first_of(("VARIANT", "VARCHAR", "CHAR"), ddl):
            raise ValueError(f"{cls.format} has no {other}: declare the column as STRING or as a STRUCT")
        return ddl
