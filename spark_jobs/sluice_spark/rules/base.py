"""What a row rule is: a column that is null where a record passes."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import Column

__all__ = ["Rule"]


class Rule(Protocol):
    """Judges single records; made from what the pipeline file says."""

    def violation(self) -> Column:
        """Return a string column: null where a record passes.

        Elsewhere it names the column that breaks the rule, or is empty where the rule is about the record as a whole.
        It may use the decoded columns and ``_topic``, ``_partition``, ``_offset``, ``_timestamp``. It must be a pure
        function of one record: the same record gets the same answer each time that it is read.
        """
