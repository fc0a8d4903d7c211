"""Shared parts of the decoders of typed fields: patterns, checks of numbers, and the result columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice_spark.decoders.base import COLUMN, DATA, RULE

__all__ = [
    "FIRST_MICRO",
    "LAST_MICRO",
    "NUMBER",
    "RAW",
    "SHAPES",
    "Read",
    "finish",
    "float_problems",
    "is_beyond",
    "is_large",
    "is_text",
    "lossless",
    "quoted",
    "text_problems",
    "text_value",
]

RAW = "__sluice_raw"
"""The parsed values, before they are checked."""

# Possessive quantifiers (*+) throughout: a group that may backtrack uses a stack frame per repetition.
_DATE = r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
_TIMESTAMP = rf"^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:{_CLOCK}(?:Z|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?)?\z"
_TIMESTAMP_NTZ = rf"^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:{_CLOCK})?\z"
SHAPES = {T.DateType: _DATE, T.TimestampType: _TIMESTAMP, T.TimestampNTZType: _TIMESTAMP_NTZ}
FIRST_MICRO, LAST_MICRO = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999, counted from 1970, UTC."""
_WHOLE = r"^[-+]?[0-9]+\z"
NUMBER = r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\z"


@dataclass
class Read:
    """How one column is computed from the parsed value."""

    name: str
    parsed: str
    """The type to parse it with."""
    value: Column
    problems: list[tuple[str, Column]] = field(default_factory=list)
    """Rules, each with the condition under which it is broken; a null condition is false."""


def finish(frame: DataFrame, reads: list[Read], rule: Column, column: Column) -> DataFrame:
    """Add the columns and the first broken rule: rules about the record first, then column by column."""
    found = [(broken, name, read.name) for read in reads for name, broken in read.problems]
    why, which = rule, F.when(~F.col(RULE).isin(*sorted({name for _, name, _ in found})), F.lit(None).cast("string"))
    for broken, name, where in found:
        why, which = why.when(broken, name), which.when(broken, where)
    data = F.struct(*(r.value.alias(r.name) for r in reads))
    frame = frame.withColumns({DATA: data, RULE: why})
    return frame.withColumn(COLUMN, F.when(F.col(RULE).isNotNull(), F.coalesce(column, which)))


def quoted(name: str) -> str:
    """Return a column's name, quoted for DDL."""
    return "`" + name.replace("`", "``") + "`"


def is_text(kind: T.DataType) -> bool:
    """Return whether a type is a string type."""
    return isinstance(kind, (T.StringType, T.VarcharType, T.CharType))


def lossless(kind: T.DecimalType) -> str:
    """Return the pattern of plain numbers whose digits beyond the scale are all zero."""
    return rf"^[-+]?[0-9]+(?:\.[0-9]{{0,{kind.scale}}}0*+)?\z"


def float_problems(column: Column, kind: T.DataType, digits: Column) -> list[tuple[str, Column]]:
    """Return the rules for numbers that are too large, and for integers that the type cannot represent exactly."""
    whole = digits.rlike(_WHOLE)
    kept = digits.try_cast("decimal(38,0)") == column.cast("double").try_cast("decimal(38,0)")
    return [
        ("type", F.abs(column) == float("inf")),
        ("digits", is_large(column, kind) & whole & ~F.coalesce(kept, F.lit(False))),
    ]


def is_large(column: Column, kind: T.DataType) -> Column | None:
    """Whether integers of this size may not be exactly representable in the type; None for exact types."""
    if isinstance(kind, T.DoubleType):
        return F.abs(column) >= 2.0**53
    if isinstance(kind, T.FloatType):
        return F.abs(column) >= 2.0**24
    return None


def is_beyond(value: Column, kind: T.DataType) -> Column:
    """Whether a time is before year 1 or after year 9999 in UTC, by its offset: few readers have such times."""
    if not isinstance(kind, T.TimestampType):
        return F.lit(False)
    return (value < F.timestamp_micros(F.lit(FIRST_MICRO))) | (value > F.timestamp_micros(F.lit(LAST_MICRO)))


def text_value(text: Column, kind: T.DataType) -> Column:
    """Return the value of a text that stands for one of a type without parts; null if it is null or stands for none."""
    if is_text(kind):
        return text
    return text.cast(kind) if isinstance(kind, T.BinaryType) else text.try_cast(kind)


def text_problems(text: Column, kind: T.DataType) -> list[tuple[str, Column]]:
    """Return the rules for such a text; null breaks none."""
    if is_text(kind):
        longest = kind.length if isinstance(kind, (T.VarcharType, T.CharType)) else None
        return [] if longest is None else [("type", F.char_length(text) > longest)]
    value = text_value(text, kind)
    if isinstance(kind, T.DecimalType):
        return [
            ("type", text.isNotNull() & ~text.rlike(r"^[-+]?[0-9]+(?:\.[0-9]*+)?\z")),
            ("digits", text.isNotNull() & (~text.rlike(lossless(kind)) | value.isNull())),
        ]
    shape = _shape(kind)
    fits = value.isNotNull() if shape is None else value.isNotNull() & text.rlike(shape) & ~is_beyond(value, kind)
    problems = [("time" if type(kind) in SHAPES else "type", text.isNotNull() & ~fits)]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        problems += float_problems(value, kind, text)
    return problems


def _shape(kind: T.DataType) -> str | None:
    if type(kind) in SHAPES:
        return SHAPES[type(kind)]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return NUMBER
    if isinstance(kind, T.BooleanType):
        return r"^(?i:true|false)\z"
    return None
