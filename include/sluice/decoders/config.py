"""The keys below ``decode`` of a pipeline file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from sluice.decoders.base import DecoderKind
from sluice.decoders.ddl import check_ddl, first_of
from sluice.fields import DELETED, METADATA_COLUMNS, Strict

__all__ = [
    "BYTES",
    "CSV",
    "JSON",
    "RESCUED",
    "TEXT",
    "BytesDecode",
    "CsvDecode",
    "Ddl",
    "JsonDecode",
    "Keyed",
    "TextDecode",
    "Tombstone",
]

RESCUED = "_rescued"
"""The column with the fields that the schema does not have."""


def _ddl(value: str) -> str:
    names = check_ddl(value)
    taken = sorted(name for name in names if name.lower() in METADATA_COLUMNS or name.lower().startswith("__sluice"))
    if taken:
        raise ValueError(f"column {taken[0]!r} is a name that Sluice adds itself: rename it in the schema")
    return value


Ddl = Annotated[str, AfterValidator(_ddl)]
"""Columns and types, as in ``CREATE TABLE``."""


def _name(value: str) -> str:
    if not re.fullmatch(_COLUMN, value):
        raise ValueError(f"{value!r} is not the name of a column: use letters, digits and _, at most 128 characters")
    if value.lower() in METADATA_COLUMNS or value.lower().startswith("__sluice"):
        raise ValueError(f"{value!r} is a name that Sluice adds itself: choose another one")
    return value


_COLUMN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"


_Column = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": _COLUMN})]


class Keyed(Strict):
    """A decoder that can also give the record's key, and its headers."""

    key: _Column | None = None
    """The name of a last column with the record's key as UTF-8 text: of a file's row, the name of the file."""
    headers: dict[_Column, str] = Field(default_factory=dict)
    """Columns behind it, each with the name of the header whose value it has as UTF-8 text."""

    @property
    def names(self) -> list[str]:
        """The names of the decoded columns, without the key's."""
        raise NotImplementedError

    @property
    def deletes(self) -> bool:
        """Whether a tombstone deletes the row of its key."""
        return getattr(self, "tombstone", None) == "delete"

    @model_validator(mode="after")
    def _key(self) -> Keyed:
        taken = [name.lower() for name in self.names]
        beside = [("key", self.key), *(("headers", name) for name in self.headers)]
        for where, name in beside:
            if name is not None and name.lower() in taken:
                raise ValueError(f"{where}: the column {name!r} is declared already (Spark ignores case)")
            taken += [] if name is None else [name.lower()]
        if self.deletes and self.key is None:
            raise ValueError(
                "tombstone: delete needs the record's key, or nothing says which row is gone: name its column, for "
                "example key: id"
            )
        if self.deletes and DELETED in taken:
            raise ValueError(f"tombstone: delete adds a column {DELETED}: rename the one that is declared")
        return self


Tombstone = Literal["quarantine", "row", "delete"]
"""What a record without a value becomes."""


class JsonDecode(Keyed):
    """One JSON object per record, typed by DDL; the contract is in ``docs/decoding.md``."""

    ddl: Annotated[Ddl, Field(alias="schema")]
    """Columns and types, as in ``CREATE TABLE``: ``id BIGINT, name STRING``."""
    tombstone: Tombstone = "quarantine"
    """What a record without a value becomes: refused (``null_value``), a ``row`` of nulls, or it deletes a row."""
    rescue: bool = False
    """Whether fields that the schema does not have are kept: as a JSON object, in a text column ``_rescued``."""

    @property
    def names(self) -> list[str]:
        """The declared columns."""
        return check_ddl(self.ddl)

    @model_validator(mode="after")
    def _rescued(self) -> JsonDecode:
        if self.rescue and RESCUED in [name.lower() for name in (*self.names, self.key or "", *self.headers)]:
            raise ValueError(f"rescue: the column {RESCUED} is declared already: rename it, or remove rescue")
        return self


def _character(text: str) -> str:
    if len(text) != 1 or text in "\r\n":
        raise ValueError(f"{text!r} is not one character (a line break is none of them)")
    return text


_CsvCharacter = Annotated[
    str,
    AfterValidator(_character),
    Field(json_schema_extra={"minLength": 1, "maxLength": 1, "pattern": r"^[^\r\n]$"}),
]


class CsvDecode(Keyed):
    """One CSV record (RFC 4180) per record, typed by DDL; the contract is in ``docs/decoding.md``."""

    ddl: Annotated[Ddl, Field(alias="schema")]
    """Columns and types, in the order of the line: ``id BIGINT, name STRING``."""
    separator: _CsvCharacter = ","
    """The character between two columns."""
    quote: _CsvCharacter = '"'
    """The character around a field that contains a separator, a quote or a line break."""
    escape: _CsvCharacter | None = None
    """The character that escapes a quote (or itself) in a quoted field; without one a quote is written twice."""
    null_text: str = ""
    """The unquoted text that means null."""
    header: bool = False
    """Whether producers send header lines: a record that consists of the column names is refused (rule ``header``)."""

    @property
    def names(self) -> list[str]:
        """The declared columns."""
        return check_ddl(self.ddl)

    @field_validator("ddl")
    @classmethod
    def _flat(cls, ddl: str) -> str:
        if nested := first_of(("ARRAY", "MAP", "STRUCT", "VARIANT"), ddl):
            raise ValueError(f"a CSV field cannot hold {nested}: declare it as STRING")
        return ddl

    @model_validator(mode="after")
    def _distinct(self) -> CsvDecode:
        escape = self.escape or self.quote
        if self.separator in (self.quote, escape):
            raise ValueError("the separator must be neither the quote nor the escape")
        if any(c in self.null_text for c in (self.separator, self.quote, "\r", "\n")):
            raise ValueError("null_text must not contain a separator, a quote or a line break")
        return self


class TextDecode(Keyed):
    """The value as UTF-8 text in a column ``value``."""

    @property
    def names(self) -> list[str]:
        """The column."""
        return ["value"]


class BytesDecode(Strict):
    """Key and value unchanged, in columns ``key`` and ``value``."""


JSON = DecoderKind(JsonDecode, "sluice_spark.decoders.json:Json")
CSV = DecoderKind(CsvDecode, "sluice_spark.decoders.csv:Csv")
TEXT = DecoderKind(TextDecode, "sluice_spark.decoders.verbatim:Text")
BYTES = DecoderKind(BytesDecode, "sluice_spark.decoders.verbatim:Bytes")
