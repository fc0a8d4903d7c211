"""The key ``decode.xml`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator, model_validator

from sluice.decoders.base import DecoderKind
from sluice.decoders.config import Ddl, Keyed, Tombstone
from sluice.decoders.ddl import check_ddl, first_of

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["TEXT_OF", "XML", "XmlDecode"]

TEXT_OF = "_VALUE"
"""The name of a column or field that is the text of an element which has attributes or other elements."""


class XmlDecode(Keyed):
    """One XML document per record, typed by DDL; the contract is in ``docs/decoding.md``."""

    ddl: Annotated[Ddl, Field(alias="schema")]
    """Columns and types, as in ``CREATE TABLE``: each gets the child element or attribute of the root of its name."""
    root: Annotated[str, Field(pattern=r"^[^\s<>/!?]+$")] | None = None
    """The name of the root element: records with another one are refused (``root``). Without it, each is read."""
    attribute_prefix: Annotated[str, Field(pattern=r"^[^\s<>&'\"`=/]{1,20}$")] = "_"
    """What the name of a column begins with that is an attribute."""
    ignore_namespace: bool = False
    """Whether the part of a name before a colon does not count; otherwise names are as the document writes them."""
    tombstone: Tombstone = "quarantine"
    """What a record without a value becomes: refused (``null_value``), a ``row`` of nulls, or it deletes a row."""

    @property
    def names(self) -> list[str]:
        """The declared columns."""
        return check_ddl(self.ddl)

    def is_attribute(self, name: str) -> bool:
        """Return whether a column or field of this name is an attribute."""
        return name.startswith(self.attribute_prefix) and name != TEXT_OF

    @field_validator("ddl")
    @classmethod
    def _there(cls, ddl: str) -> str:
        if other := first_of(("MAP", "VARIANT"), ddl):
            raise ValueError(f"XML has no {other}: declare the fields that you need as a STRUCT")
        if first_of(("BINARY", "VARBINARY"), ddl):
            raise ValueError("XML has no BINARY: declare it as STRING, and write unbase64 or unhex in the transform")
        return ddl

    @model_validator(mode="after")
    def _possible(self) -> XmlDecode:
        for name, kind in _fields(self.ddl):
            nested = kind.this.name in ("ARRAY", "STRUCT")
            if nested and (self.is_attribute(name) or name == TEXT_OF):
                what = "the text of an element" if name == TEXT_OF else "an attribute (attribute_prefix)"
                raise ValueError(
                    f"{name!r} is {what}, which is no {kind.this.name}: declare another type, or rename it"
                )
            if kind.this.name == "ARRAY" and kind.expressions[0].this.name == "ARRAY":
                raise ValueError(f"{name!r} is an array of arrays, which XML does not have: put a STRUCT between them")
        return self


def _fields(ddl: str) -> Iterator[tuple[str, exp.DataType]]:
    """Yield the columns and fields of a valid schema, at any depth, with their types."""
    from sqlglot import exp, parse_one

    for column in parse_one(f"CREATE TABLE t ({ddl})", dialect="spark").find_all(exp.ColumnDef):
        yield column.name, column.args["kind"]


XML = DecoderKind(XmlDecode, "sluice_spark.decoders.xml:Xml")
