"""Profiles staged rows: from the footers of their files, and for some columns from their values.

Footers are read anyway, so count, nulls, minimum and maximum cost next to nothing. Mean and distinct values are in no
footer: the columns for which a user wants them are read back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.facts.profile import NO_ROWS, SKETCH, ColumnProfile, Profile
from sluice.fields import METADATA_COLUMNS, TAKES_AWAY
from sluice.storage import file_system
from sluice_spark.engine.logs import logger
from sluice_spark.sinks.base import Staged

__all__ = ["MOST", "columns_of", "longest_of", "nulls_of", "profile_of"]

MOST = 200
"""Columns of a table that are profiled, the first ones: a profile travels in the commit of its batch."""

_LEFT_OUT = {*METADATA_COLUMNS, TAKES_AWAY} - {"_timestamp"}
_ROWS = 1 << 18


def columns_of(metadata: Any, partition: Mapping[str, str | None]) -> dict[str, ColumnProfile]:
    """Return what a Parquet footer says of the columns, those within structs by their path.

    A column within a list or a map has no nulls of its own, and is left out. Text has no minimum and no maximum here:
    they say little, and may be a user's name.

    Parameters
    ----------
    partition
        The file's values of partition columns, which it does not have itself.
    """
    rows = metadata.num_rows
    found = {
        name: ColumnProfile(rows, rows if value is None else 0)
        for name, value in partition.items()
        if name not in _LEFT_OUT
    }
    schema = metadata.schema
    leaves = [(i, schema.column(i)) for i in range(len(schema))]
    plain = [(i, leaf.path) for i, leaf in leaves if leaf.max_repetition_level == 0 and leaf.path not in _LEFT_OUT]
    # metadata columns come last, and the newest record's time is asked for
    for i, path in sorted(plain, key=lambda item: item[1] != "_timestamp")[: MOST + 1]:
        groups = [metadata.row_group(g).column(i).statistics for g in range(metadata.num_row_groups)]
        found[path] = _column(rows, groups)
    return found


def nulls_of(root: str, path: str, name: str) -> int:
    """Return how many rows of a file have no value in a column: by its footer, or counted if that does not say.

    Parameters
    ----------
    root, path
        Path or URL of the folder, and the file's path in it.
    name
        A column that is no list, map or struct, and in none. A file that lacks it has no value in any row.
    """
    fs, base = file_system(root)
    with fs.open(f"{base}/{path}", "rb") as handle:
        file = pq.ParquetFile(handle)
        metadata = file.metadata
        leaves = [i for i in range(len(metadata.schema)) if metadata.schema.column(i).path == name]
        if not leaves:
            return int(metadata.num_rows)
        groups = [metadata.row_group(g).column(leaves[0]).statistics for g in range(metadata.num_row_groups)]
        told = _column(metadata.num_rows, groups).nulls
        if told is not None:
            return told
        return sum(batch.column(0).null_count for batch in file.iter_batches(1024, columns=[name]))


def longest_of(root: str, path: str, name: str) -> int:
    """Return how many characters the longest text in a column of a file has; 0 if there is none.

    Parameters
    ----------
    root, path
        Path or URL of the folder, and the file's path in it.
    name
        A column of strings, outside of others. A file may lack it.
    """
    fs, base = file_system(root)
    with fs.open(f"{base}/{path}", "rb") as handle:
        file = pq.ParquetFile(handle)
        if name not in file.schema_arrow.names:
            return 0
        parts = (batch.column(0) for batch in file.iter_batches(1024, columns=[name]))
        return max((pc.max(pc.utf8_length(texts)).as_py() or 0 for texts in parts), default=0)


def profile_of(
    root: str | None, staged: Staged, profiled: Sequence[str] = (), *, masked: Sequence[str] = ()
) -> Profile:
    """Return the profile of staged rows.

    Parameters
    ----------
    root
        Path or URL of the folder below which they are.
    profiled
        The columns that are read back, for mean and distinct values. If that fails, the log says so, and these are
        unknown.
    masked
        The columns of which only nulls are counted.
    """
    found = reduce(Profile.__or__, (Profile(file.rows, file.columns) for file in staged.files), NO_ROWS)
    columns = dict(found.columns)
    if root is not None and profiled and staged.files:
        try:
            columns |= {name: deep for name, deep in _read(root, staged, profiled, columns) if deep is not None}
        except Exception as error:
            logger.warning("mean and distinct values are unknown: %s: %s", type(error).__name__, str(error)[:500])
    hidden = {name.lower() for name in masked}
    for name, column in columns.items():
        if {name.lower(), name.partition(".")[0].lower()} & hidden:
            columns[name] = ColumnProfile(column.rows, column.nulls)
    return Profile(found.rows, columns)


def _column(rows: int, groups: Sequence[Any]) -> ColumnProfile:
    if any(s is None or not s.has_null_count for s in groups):
        return ColumnProfile(rows)
    nulls = sum(s.null_count for s in groups)
    there = [s for s in groups if s.num_values > 0]
    if not there or any(not s.has_min_max for s in there):
        return ColumnProfile(rows, nulls)
    try:
        low, high = min(s.min for s in there), max(s.max for s in there)
        kind, of_high = _kind(low), _kind(high)
        if kind is None or kind != of_high:
            return ColumnProfile(rows, nulls)
        return ColumnProfile(rows, nulls, kind, _told(low), _told(high))
    except (OverflowError, ValueError, TypeError):  # a date that Python does not support
        return ColumnProfile(rows, nulls)


def _kind(value: Any) -> str | None:
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, datetime):
        return "local" if value.tzinfo is None else "time"
    for kind, of in (("number", (int, float)), ("decimal", Decimal), ("date", date)):
        if isinstance(value, of):
            return kind
    return None


def _told(value: Any) -> Any:
    if isinstance(value, datetime):
        # one form, so that the order of the texts is that of the times
        text = (value if value.tzinfo is None else value.astimezone(UTC)).isoformat(timespec="microseconds")
        return text.replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


@dataclass
class _Deep:
    """Adds up what the values of a column show, a bounded number at a time."""

    sketch: Any = None
    total: float | None = None
    values: int | None = None
    low: float = math.inf
    high: float = -math.inf
    floating: bool = False

    def add(self, values: pa.Array) -> None:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        values = values.drop_null()
        hashes = _hashes(values)
        if hashes is not None:
            known = np.empty(0, dtype=np.uint64) if self.sketch is None else self.sketch
            if len(known) == SKETCH:
                hashes = hashes[hashes < known[-1]]
            self.sketch = np.unique(np.concatenate([known, hashes]))[:SKETCH]
        if not _counts(values.type):
            return
        self.floating = self.floating or pa.types.is_floating(values.type)
        whole = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
        numbers = whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        finite = numbers[np.isfinite(numbers)]
        self.total = (self.total or 0.0) + float(finite.sum())
        self.values = (self.values or 0) + len(finite)
        if len(finite):
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))

    def told(self, known: ColumnProfile) -> ColumnProfile:
        total = self.total if self.total is not None and math.isfinite(self.total) else None
        sketch = None if self.sketch is None else tuple(map(int, self.sketch))
        found = replace(known, total=total, values=self.values, sketch=sketch)
        if self.floating and self.values:  # a footer has no ends beside NaN, or has infinite ones
            found = replace(found, kind="number", low=self.low, high=self.high)
        return found


def _read(
    root: str, staged: Staged, names: Sequence[str], columns: Mapping[str, ColumnProfile]
) -> Iterator[tuple[str, ColumnProfile | None]]:
    fs, base = file_system(root)
    found = {name: _Deep() for name in names if name in columns}
    for file in staged.files:
        there = [name for name in found if name in file.columns and name not in file.partition_values]
        for name in found.keys() & file.partition_values.keys():
            found[name].add(pa.array([file.partition_values[name]], pa.string()))
        if there:
            with fs.open(f"{base}/{file.path}", "rb") as handle:
                for batch in _batches(handle, there):
                    for name in there:
                        found[name].add(_values(batch, name))
    return ((name, deep.told(columns[name])) for name, deep in found.items())


def _batches(handle: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    parquet = pq.ParquetFile(handle, coerce_int96_timestamp_unit="us")
    # one row group at a time: a reader of several keeps the bytes of those that it has read
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(_ROWS, row_groups=[group], columns=list(names))


def _values(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    first, *rest = name.split(".")
    found: pa.Array = pc.struct_field(batch.column(first), rest)  # null where the struct is
    return found


def _counts(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind))


def _hashes(values: pa.Array) -> Any:
    """Return a hash of each distinct value, the same in each process; None for values of another kind."""
    from pandas.util import hash_array  # half a second, for those who want it

    kind, types = values.type, pa.types
    if types.is_nested(kind):
        return None
    distinct = values.unique()
    if types.is_decimal(kind):
        distinct = distinct.cast(pa.string())
    elif types.is_temporal(kind):
        distinct = distinct.cast(pa.int32() if types.is_date32(kind) or types.is_time32(kind) else pa.int64())
    elif types.is_boolean(kind):
        distinct = distinct.cast(pa.int8())
    numbers = distinct.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        numbers = numbers + 0.0  # no negative zero
    return hash_array(numbers, categorize=False)
