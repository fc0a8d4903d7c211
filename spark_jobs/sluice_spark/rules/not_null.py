"""A rule that some columns are never null."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.rules.config import NotNullRule

__all__ = ["NotNull"]


class NotNull:
    """Refuses records in which one of the columns is null."""

    def __init__(self, config: NotNullRule) -> None:
        self._columns = config.columns

    def violation(self) -> Column:
        """Return the first column that is null."""
        names = [F.when(F.col(f"`{name}`").isNull(), F.lit(name)) for name in self._columns]
        return F.coalesce(*names)
