"""Columns by their names, whatever these are, and by what is in their types."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["column", "holds"]


def column(name: str) -> Column:
    """Return the top-level column of this name, which may have dots and backticks in it."""
    return F.col(f"`{name.replace('`', '``')}`")


def holds(kind: T.DataType, wanted: Callable[[T.DataType], bool]) -> bool:
    """Return whether a type, or one of the values in it, is one of those that are wanted; keys of maps do not count."""
    if isinstance(kind, T.StructType):
        return any(holds(field.dataType, wanted) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return holds(kind.elementType, wanted)
    if isinstance(kind, T.MapType):
        return holds(kind.valueType, wanted)
    return wanted(kind)
