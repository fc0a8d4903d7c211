"""Finds the rows of a table by their keys, such as those of staged rows, and rewrites files without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.storage import file_system
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.delta.statistics import may_be, may_be_at
from sluice_spark.sinks.parquet.slice import Found, Slice, opened, readable

__all__ = ["RowsByKey", "told"]


@dataclass
class RowsByKey(Slice):
    """The rows that have some keys, such as those of staged rows.

    Keys are in memory, those of the files one batch of rows at a time.

    Parameters
    ----------
    ranges
        None of them is used: rows are chosen by their keys.
    keys
        The names of the columns; by the statistics of the first, files are chosen.
    wanted
        The keys, as text.
    firsts
        The values of the first column, each once; times are numbers.
    rows
        The same, as they came.
    """

    keys: Sequence[str] = ()
    wanted: frozenset[str] = field(default=frozenset(), repr=False)
    firsts: pa.Array | None = field(default=None, repr=False)
    rows: Sequence[pa.RecordBatch] = field(default=(), repr=False)

    @classmethod
    def of(cls, root: str, staged: Staged, keys: Sequence[str]) -> RowsByKey:
        """Return the slice of these staged rows."""
        fs, base = file_system(root)

        def batches() -> Iterator[Any]:
            for file in staged.files:
                with fs.open(f"{base}/{unquote(file.path)}", "rb") as handle:
                    yield from opened(handle).iter_batches(columns=list(keys))

        return cls.among(batches(), keys)

    @classmethod
    def among(cls, batches: Iterable[Any], keys: Sequence[str]) -> RowsByKey:
        """Return the slice of the rows that have the keys of these Arrow batches."""
        rows = list(batches)
        wanted = frozenset(text for batch in rows for text in _texts(batch, keys))
        firsts = pa.chunked_array([told(batch.column(keys[0])) for batch in rows]).unique() if rows else None
        return cls((), keys=tuple(keys), wanted=wanted, firsts=firsts, rows=rows)

    def _may_hold(self, files: pa.Table) -> Any:
        if self.firsts is None or not self.wanted:
            return np.zeros(files.num_rows, dtype=bool)
        first, kind = self.keys[0], self.rows[0].schema.field(self.keys[0]).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)) or self.firsts.null_count:
            return np.ones(files.num_rows, dtype=bool)
        low, high = pc.min_max(self.firsts).values()
        if pa.types.is_timestamp(kind):
            return may_be_at(files, first, low.as_py(), high.as_py() + 1)
        return may_be(files, first, low.as_py(), high.as_py())

    def _look(self, fs: Any, base: str, path: str) -> Found:
        return self._counted(fs, base, path, list(self.keys))

    def _masks(self, batch: Any, values: Mapping[str, str | None]) -> list[tuple[tuple[str, int], Any]]:
        batch = readable(batch)
        chosen = self._near(batch)
        (places,) = chosen.nonzero()
        chosen[places] = [text in self.wanted for text in _texts(batch.take(pa.array(places)), self.keys)]
        return [(("", 0), chosen)]

    def _near(self, batch: Any) -> Any:
        """Return which rows have a first key that is wanted, or may have one."""
        every = np.ones(batch.num_rows, dtype=bool)
        if self.firsts is None or self.keys[0] not in batch.schema.names:
            return every
        column = told(batch.column(self.keys[0]))
        if column.type != self.firsts.type or pa.types.is_nested(column.type):
            return every
        return np.array(pc.is_in(column, self.firsts).to_numpy(zero_copy_only=False), dtype=bool)


def _texts(batch: Any, names: Sequence[str]) -> list[str]:
    """Return the key of each row, as text that is the same for equal values; NULL and NaN equal themselves."""
    there = set(batch.schema.names)  # a file from before a column was added has NULL in it
    columns = [told(batch.column(n)).to_pylist() if n in there else [None] * batch.num_rows for n in names]
    return [repr(row) for row in zip(*columns, strict=True)]


def told(column: Any) -> Any:
    # how files have times differs from writer to writer, and Python has none after the year 9999: they become numbers
    micros = column.cast(_retyped(column.type, pa.timestamp("us"), pa.date32()))
    return micros.cast(_retyped(micros.type, pa.int64(), pa.int32()))


def _retyped(kind: Any, times: Any, dates: Any) -> Any:
    """Return a type with others in place of each TIMESTAMP and each DATE."""
    if pa.types.is_timestamp(kind):
        return times
    if pa.types.is_date(kind):
        return dates
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_retyped(field.type, times, dates)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_retyped(kind.value_type, times, dates)))
    return kind
