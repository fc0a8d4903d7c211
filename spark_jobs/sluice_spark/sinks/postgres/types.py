"""Types of columns: Spark's, PostgreSQL's, and Arrow's between them."""

from __future__ import annotations

import re

import pyarrow as pa
from pyspark.sql import types as T

__all__ = [
    "LARGEST",
    "arrow_type",
    "beyond_decimal",
    "column_type",
    "fits",
    "held_type",
    "is_text_to",
    "limit_of",
    "unsupported",
]

_SIMPLE: dict[type[T.DataType], tuple[str, pa.DataType]] = {
    T.BooleanType: ("boolean", pa.bool_()),
    T.ByteType: ("smallint", pa.int16()),
    T.ShortType: ("smallint", pa.int16()),
    T.IntegerType: ("integer", pa.int32()),
    T.LongType: ("bigint", pa.int64()),
    T.FloatType: ("real", pa.float32()),
    T.DoubleType: ("double precision", pa.float64()),
    T.StringType: ("text", pa.string()),
    T.VarcharType: ("text", pa.string()),
    T.CharType: ("text", pa.string()),
    T.BinaryType: ("bytea", pa.binary()),
    T.DateType: ("date", pa.date32()),
    T.TimestampType: ("timestamp with time zone", pa.timestamp("us", "UTC")),
    T.TimestampNTZType: ("timestamp without time zone", pa.timestamp("us")),
}

_WIDER = {
    "smallint": {"integer", "bigint"},
    "integer": {"bigint"},
    "real": {"double precision"},
    "text": {"character varying", "json", "jsonb", "uuid"},
}
"""Types of existing columns that take each value of another type, or refuse it with an error."""

_HELD: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "smallint": T.ShortType(),
    "integer": T.IntegerType(),
    "bigint": T.LongType(),
    "real": T.FloatType(),
    "double precision": T.DoubleType(),
    "bytea": T.BinaryType(),
    "date": T.DateType(),
    "timestamp with time zone": T.TimestampType(),
    "timestamp without time zone": T.TimestampNTZType(),
}

_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
LARGEST = 38
"""Most digits of Spark's decimals."""


def unsupported(kind: T.DataType) -> str | None:
    """Return the type, in words, if no column of PostgreSQL holds it as it is; else None."""
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return None if type(inner) in _SIMPLE and not isinstance(inner, T.BinaryType) else _words(kind)
    return None if type(kind) in _SIMPLE or isinstance(kind, T.DecimalType) else _words(kind)


def _words(kind: T.DataType) -> str:
    return str(kind.simpleString()).upper()


def column_type(kind: T.DataType) -> str:
    """Return the type of a new column."""
    if isinstance(kind, T.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, T.ArrayType):
        return f"{column_type(kind.elementType)}[]"
    return _SIMPLE[type(kind)][0]


def arrow_type(kind: T.DataType) -> pa.DataType:
    """Return the type with which values travel."""
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    return _SIMPLE[type(kind)][1]


def fits(kind: T.DataType, there: str) -> bool:
    """Return whether an existing column takes each value unchanged, or refuses it with an error.

    Parameters
    ----------
    there
        As PostgreSQL's ``format_type`` writes it, for example ``character varying(20)``.
    """
    if isinstance(kind, T.DecimalType):
        found = _NUMERIC.fullmatch(there)
        # a smaller scale would round without an error
        return found is not None and (found[2] is None or int(found[2]) >= kind.scale)
    ours = column_type(kind)
    return there == ours or re.sub(r"\(\d+\)$", "", there) in _WIDER.get(ours, ()) or (
        ours in ("smallint", "integer", "bigint") and there == "numeric"
    )  # fmt: skip


def limit_of(there: str) -> int | None:
    """Return the most characters that a column holds; PostgreSQL cuts blanks beyond them without an error."""
    found = re.fullmatch(r"character varying\((\d+)\)", there)
    return int(found[1]) if found else None


def is_text_to(there: str) -> bool:
    """Return whether text needs an explicit cast to this type; an assignment refuses it."""
    return there in ("json", "jsonb", "uuid")


def held_type(there: str) -> T.DataType:
    """Return the type with which a column is read; types that Spark lacks are read as text."""
    if there.endswith("[]"):
        inner = T.StringType() if there == "text[]" else _HELD.get(there[:-2])
        return T.StringType() if inner is None else T.ArrayType(inner)
    found = _NUMERIC.fullmatch(there)
    if found is not None:
        return T.DecimalType(LARGEST, 18) if beyond_decimal(there) else T.DecimalType(int(found[1]), int(found[2]))
    return _HELD.get(there, T.StringType())


def beyond_decimal(there: str) -> bool:
    """Return whether it is a type of numbers of which no DECIMAL of Spark holds all."""
    found = _NUMERIC.fullmatch(there)
    return found is not None and not (found[1] and 0 <= int(found[2]) <= int(found[1]) <= LARGEST)
