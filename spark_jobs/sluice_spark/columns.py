"""Columns by their names, whatever these are."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["column"]


def column(name: str) -> Column:
    """Return the top-level column of this name, which may have dots and backticks in it."""
    return F.col(f"`{name.replace('`', '``')}`")
