"""The keys below ``decode`` of a pipeline file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from sluice.decoders.base import DecoderKind
from sluice.decoders.ddl import check_ddl
from sluice.fields import METADATA_COLUMNS, Strict

__all__ = ["BYTES", "CSV", "JSON", "TEXT", "BytesDecode", "CsvDecode", "Ddl", "JsonDecode", "TextDecode"]


def _ddl(value: str) -> str:
    names = check_ddl(value)
    taken = sorted(name for name in names if name.lower() in METADATA_COLUMNS or name.lower().startswith("__sluice"))
    if taken:
        raise ValueError(f"column {taken[0]!r} is a name that Sluice adds itself: rename it in the schema")
    return value


Ddl = Annotated[str, AfterValidator(_ddl)]
"""Columns and types, as in ``CREATE TABLE``."""


class JsonDecode(Strict):
    """One JSON object per record, typed by DDL; the contract is in ``docs/decoding.md``."""

    ddl: Annotated[Ddl, Field(alias="schema")]
    """Columns and types, as in ``CREATE TABLE``: ``id BIGINT, name STRING``."""


def _character(text: str) -> str:
    if len(text) != 1 or text in "\r\n":
        raise ValueError(f"{text!r} is not one character (a line break is none of them)")
    return text


_CsvCharacter = Annotated[
    str,
    AfterValidator(_character),
    Field(json_schema_extra={"minLength": 1, "maxLength": 1, "pattern": r"^[^\r\n]$"}),
]


class CsvDecode(Strict):
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

    @field_validator("ddl")
    @classmethod
    def _flat(cls, ddl: str) -> str:
        nested = re.search(r"\b(ARRAY|MAP|STRUCT)\s*<|\sVARIANT\b", ddl, re.IGNORECASE)
        if nested:
            raise ValueError(f"a CSV field cannot hold {nested[0].strip(' <').upper()}: declare it as STRING")
        return ddl

    @model_validator(mode="after")
    def _distinct(self) -> CsvDecode:
        escape = self.escape or self.quote
        if self.separator in (self.quote, escape):
            raise ValueError("the separator must be neither the quote nor the escape")
        if any(c in self.null_text for c in (self.separator, self.quote, "\r", "\n")):
            raise ValueError("null_text must not contain a separator, a quote or a line break")
        return self


class TextDecode(Strict):
    """The value as UTF-8 text in a column ``value``."""


class BytesDecode(Strict):
    """Key and value unchanged, in columns ``key`` and ``value``."""


JSON = DecoderKind(JsonDecode, "sluice_spark.decoders.json:Json")
CSV = DecoderKind(CsvDecode, "sluice_spark.decoders.csv:Csv")
TEXT = DecoderKind(TextDecode, "sluice_spark.decoders.plain:Text")
BYTES = DecoderKind(BytesDecode, "sluice_spark.decoders.plain:Bytes")
