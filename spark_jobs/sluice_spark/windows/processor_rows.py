"""Looks at the rows that a user's ``StatefulProcessor`` yields. Python workers import this module: it needs little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegralType, StructType

__all__ = ["Watched"]


class Watched(StatefulProcessor):
    """A processor whose rows are those that the pipeline file names.

    Spark makes NULL of a column that a row lacks, leaves out one that it has beside them, and cuts fractions off for an
    integer column, and says nothing; of a NULL in a NOT NULL column it does not say where. This one raises a
    :class:`ValueError`, which ends the run.

    Parameters
    ----------
    made
        The user's processor.
    schema
        The columns of its rows.
    """

    def __init__(self, made: StatefulProcessor, schema: StructType) -> None:
        self._made = made
        self._names = frozenset(schema.names)
        self._whole = [field.name for field in schema if isinstance(field.dataType, IntegralType)]
        self._required = [field.name for field in schema if not field.nullable]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Pass the handle on."""
        self._made.init(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Return the user's rows."""
        return self._looked_at(self._made.handleInputRows(key, rows, timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Return the user's rows."""
        return self._looked_at(self._made.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def close(self) -> None:
        """Pass it on."""
        self._made.close()

    def _looked_at(self, rows: Iterable[Any]) -> Iterator[Row]:
        for row in rows:
            found = getattr(row, "__fields__", None)
            if found is None or self._names.symmetric_difference(found):
                told = "no names" if found is None else f"the columns {', '.join(found)}"
                raise ValueError(
                    f"the processor yielded a row with {told}; processor.schema has {', '.join(sorted(self._names))}"
                )
            for name in self._whole:
                if isinstance(row[name], float) and not row[name].is_integer():
                    raise ValueError(f"the processor yielded {row[name]} for {name}, an integer of processor.schema")
            for name in self._required:
                if row[name] is None:
                    raise ValueError(f"the processor yielded NULL for {name}, which is NOT NULL in processor.schema")
            yield row
