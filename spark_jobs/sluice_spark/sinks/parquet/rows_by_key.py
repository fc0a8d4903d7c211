"""Finds the rows of a table by their keys, such as those of staged rows, and rewrites files without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from sluice.storage import file_system
from sluice_spark.sinks.base import Staged
from sluice_spark.sinks.delta.statistics import may_be_at
from sluice_spark.sinks.parquet.slice import Found, Slice, moments, opened, readable

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
        The names of the columns; the first is a TIMESTAMP, by whose statistics files are chosen.
    wanted
        The keys, as :meth:`of` has them.
    rows
        The same, as they came.
    """

    keys: Sequence[str] = ()
    wanted: Mapping[int, set[str]] = field(default_factory=dict, repr=False)
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
        wanted: dict[int, set[str]] = {}
        rows = list(batches)
        for batch in rows:
            for moment, rest in zip(moments(batch, keys[0]), _others(batch, keys[1:]), strict=True):
                wanted.setdefault(int(moment), set()).add(rest)
        return cls((), keys=tuple(keys), wanted=wanted, rows=rows)

    def _may_hold(self, files: pa.Table) -> Any:
        if not self.wanted:
            return np.zeros(files.num_rows, dtype=bool)
        return may_be_at(files, self.keys[0], min(self.wanted), max(self.wanted) + 1)

    def _look(self, fs: Any, base: str, path: str) -> Found:
        return self._counted(fs, base, path, list(self.keys))

    def _masks(self, batch: Any, values: Mapping[str, str | None]) -> list[tuple[tuple[str, int], Any]]:
        batch = readable(batch)
        times = moments(batch, self.keys[0])
        chosen = np.isin(times, np.fromiter(self.wanted, np.int64, len(self.wanted)))
        (places,) = chosen.nonzero()
        others = _others(batch.take(pa.array(places)), self.keys[1:])
        chosen[places] = [rest in self.wanted[int(times[at])] for at, rest in zip(places, others, strict=True)]
        return [(("", 0), chosen)]


def _others(batch: Any, names: Sequence[str]) -> list[str]:
    """Return the other keys of each row, as text that is the same for equal values; NULL and NaN equal themselves."""
    there = set(batch.schema.names)  # a file from before a column was added has NULL in it
    columns = [told(batch.column(n)).to_pylist() if n in there else [None] * batch.num_rows for n in names]
    return [repr(row) for row in zip(*columns, strict=True)] if names else [""] * batch.num_rows


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
