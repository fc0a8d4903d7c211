"""Finds the rows of a table by a column with a time, such as the start of a window, and rewrites files without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice_spark.sinks.delta.statistics import may_be_at
from sluice_spark.sinks.parquet.slice import Found, Slice, moments

__all__ = ["RowsByTime"]


@dataclass
class RowsByTime(Slice):
    """The rows whose time in a column is in ``[start, end)``; a row without one is not among them.

    Parameters
    ----------
    ranges
        None of them is used.
    column
        The name of a TIMESTAMP column, which is no partition column.
    after
        If given, the name of another one, whose time must be greater than this one, in milliseconds since 1970.
    """

    column: str = ""
    after: tuple[str, int] | None = None

    def _may_hold(self, files: pa.Table) -> Any:
        return may_be_at(files, self.column, self.start * 1000, self.end * 1000)

    def _look(self, fs: Any, base: str, path: str) -> Found:
        return self._counted(fs, base, path, [self.column, *([self.after[0]] if self.after is not None else [])])

    def _masks(self, batch: Any, values: Mapping[str, str | None]) -> list[tuple[tuple[str, int], Any]]:
        times = moments(batch, self.column)
        chosen = (times >= self.start * 1000) & (times < self.end * 1000)
        if self.after is not None:
            chosen &= moments(batch, self.after[0]) > self.after[1] * 1000
        return [(("", 0), chosen)]
