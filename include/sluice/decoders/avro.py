"""The key ``decode.avro`` of a pipeline file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from sluice.decoders.base import DecoderKind
from sluice.decoders.config import Ddl, Keyed, Tombstone
from sluice.decoders.ddl import check_ddl, first_of

__all__ = ["AVRO", "AvroDecode"]


class AvroDecode(Keyed):
    """One Avro record per record, in the wire format of schema registries; the contract is in ``docs/decoding.md``."""

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
            raise ValueError(f"Avro has no {other}: declare the column as STRING or as a STRUCT")
        return ddl


AVRO = DecoderKind(AvroDecode, "sluice_spark.decoders.avro:Avro")
