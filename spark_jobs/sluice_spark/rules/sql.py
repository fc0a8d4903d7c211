"""A rule that is a SQL condition."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.rules.config import SqlRule

__all__ = ["Sql"]


class Sql:
    """Refuses records for which a condition is false; null passes, as in a CHECK constraint."""

    def __init__(self, config: SqlRule) -> None:
        self._config = config

    def violation(self) -> Column:
        """Return the named column where the condition is false."""
        return F.when(F.expr(f"NOT ({self._config.passes}\n)"), F.lit(self._config.column or ""))
