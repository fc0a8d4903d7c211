"""What decoders of typed fields share: patterns, what is wrong with a number, and the columns at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice_spark.decoders.base import COLUMN, DATA, RULE

__all__ = ["NUMBER", "RAW", "SHAPES", "Read", "finish", "float_problems", "is_large", "is_text", "lossless", "quoted"]

RAW = "__sluice_raw"
"""What was parsed, before it is judged."""

# Possessive quantifiers (*+) throughout: a group that may backtrack takes a stack frame each time round.
_DATE = r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
_TIMESTAMP = rf"^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:{_CLOCK}(?:Z|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?)?\z"
_TIMESTAMP_NTZ = rf"^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:{_CLOCK})?\z"
SHAPES = {T.DateType: _DATE, T.TimestampType: _TIMESTAMP, T.TimestampNTZType: _TIMESTAMP_NTZ}
_WHOLE = r"^[-+]?[0-9]+\z"
NUMBER = r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\z"


@dataclass
class Read:
    """How one column is taken from what was parsed."""

    name: str
    parsed: str
    """The type to parse it with."""
    value: Column
    problems: list[tuple[str, Column]] = field(default_factory=list)
    """Rule and condition; a condition that is null is not met."""


def finish(frame: DataFrame, reads: list[Read], rule: Column, column: Column) -> DataFrame:
    """Add what was read, and what is wrong with it: first of the record, then column by column."""
    found = [(broken, name, read.name) for read in reads for name, broken in read.problems]
    why, which = rule, F.when(~F.col(RULE).isin(*sorted({name for _, name, _ in found})), F.lit(None).cast("string"))
    for broken, name, where in found:
        why, which = why.when(broken, name), which.when(broken, where)
    data = F.struct(*(r.value.alias(r.name) for r in reads))
    frame = frame.withColumns({DATA: data, RULE: why})
    return frame.withColumn(COLUMN, F.when(F.col(RULE).isNotNull(), F.coalesce(column, which)))


def quoted(name: str) -> str:
    """Return a column's name as DDL takes it."""
    return "`" + name.replace("`", "``") + "`"


def is_text(kind: T.DataType) -> bool:
    """Tell whether a type is text of some kind."""
    return isinstance(kind, (T.StringType, T.VarcharType, T.CharType))


def lossless(kind: T.DecimalType) -> str:
    """Return the pattern of plain numbers that have no digits behind the scale but noughts."""
    return rf"^[-+]?[0-9]+(?:\.[0-9]{{0,{kind.scale}}}0*+)?\z"


def float_problems(column: Column, kind: T.DataType, digits: Column) -> list[tuple[str, Column]]:
    """Too large; or a whole number, given by its digits, that the type does not hold."""
    whole = digits.rlike(_WHOLE)
    kept = digits.try_cast("decimal(38,0)") == column.cast("double").try_cast("decimal(38,0)")
    return [
        ("type", F.abs(column) == float("inf")),
        ("digits", is_large(column, kind) & whole & ~F.coalesce(kept, F.lit(False))),
    ]


def is_large(column: Column, kind: T.DataType) -> Column | None:
    """Whether whole numbers of this size may fall between two values of the type."""
    if isinstance(kind, T.DoubleType):
        return F.abs(column) >= 2.0**53
    if isinstance(kind, T.FloatType):
        return F.abs(column) >= 2.0**24
    return None
