"""Column statistics in a table's log, and the table property that makes readers see those of the metadata columns.

Readers of a Delta table see the statistics of its first 32 columns, and the metadata columns come last. In a wide table
readers would not see which run, offsets and times a file holds, although the log has these statistics. Every query for
a run or an interval would then open every file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql.types import (
    DataType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

__all__ = ["NEEDED", "bounds", "files_of", "hidden", "mask", "may_be", "may_be_at", "settings_for"]

NEEDED = ("_topic", "_partition", "_offset", "_timestamp", "_run")
"""The columns by which files are searched."""

_COLUMNS = "delta.dataSkippingStatsColumns"
_FIRST = "delta.dataSkippingNumIndexedCols"
_DEFAULT_FIRST = 32

_PART = re.compile(r"([,.]?)\s*(?:(`(?:[^`]|``)*`)|([^`,.]+))")

Path = tuple[str, ...]


def files_of(table: DeltaTable) -> pa.Table:
    """Return the table's files with their statistics and partition values, one column each."""
    # not by pa.table, which imports pandas to check the type of its argument
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def bounds(files: pa.Table, column: str) -> tuple[Any, Any] | None:
    """Return the minimum and maximum of a column, by file; None if the log shows them for no file."""
    if f"partition.{column}" in files.column_names:
        return files.column(f"partition.{column}"), files.column(f"partition.{column}")
    if f"min.{column}" in files.column_names and f"max.{column}" in files.column_names:
        return files.column(f"min.{column}"), files.column(f"max.{column}")
    return None


def may_be(files: pa.Table, column: str, first: int | str, last: int | str) -> Any:
    """Return a mask of the files that may hold a value in ``[first, last]``; a file without statistics may."""
    found = bounds(files, column)
    if found is None:
        return np.ones(files.num_rows, dtype=bool)
    low, high = found
    return mask(pc.and_kleene(pc.less_equal(low, last), pc.greater_equal(high, first)), unknown=True)


def may_be_at(files: pa.Table, column: str, start: int, end: int) -> Any:
    """Return a mask of the files that may hold a time in ``[start, end)``, in microseconds since 1970."""
    found = bounds(files, column)
    if found is None:
        return np.ones(files.num_rows, dtype=bool)
    low, high = (t.cast(pa.timestamp("us", "UTC")).cast(pa.int64()) for t in found)
    # statistics are truncated to milliseconds
    return mask(pc.and_kleene(pc.less(low, end), pc.greater_equal(high, start - 1000)), unknown=True)


def mask(values: Any, *, unknown: bool) -> Any:
    """Convert Arrow booleans to a NumPy mask; nulls become ``unknown``."""
    return np.asarray(pc.fill_null(values, unknown), dtype=bool)


def hidden(table: DeltaTable) -> list[str]:
    """Return the columns of :data:`NEEDED` that the table has, but whose statistics its log does not show."""
    names = set(files_of(table).column_names)
    there = {field.name for field in table.schema().fields} - set(table.metadata().partition_columns)
    return [c for c in NEEDED if c in there and not {f"min.{c}", f"max.{c}"} <= names]


def settings_for(schema: StructType, partition_by: Sequence[str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the table properties that make the log show the statistics of :data:`NEEDED`; empty if it does already.

    Columns whose statistics are shown now stay so: those that a user chose, or else the first ones.

    Parameters
    ----------
    settings
        The table's present properties, or those with which it will be created.
    """
    leaves = [(path, kind) for path, kind in _leaves(schema, ()) if path[0] not in partition_by]
    needed: list[Path] = [(c,) for c in NEEDED if c in schema.names and c not in partition_by]
    first = _first(settings)
    if _COLUMNS not in settings and (first < 0 or {path for path, _ in leaves[:first]} >= set(needed)):
        return {}
    theirs = _parsed(settings.get(_COLUMNS, ""))
    chosen = theirs if _COLUMNS in settings else [path for path, kind in leaves[: max(first, 0)] if _eligible(kind)]
    added: list[Path] = []
    # delta-rs shows no statistics of columns after a struct for which it shows none
    for struct in _structs(schema, ()):
        inner = [path for path, kind in leaves if path[: len(struct)] == struct and _eligible(kind)]
        if not inner and _COLUMNS not in settings:
            return {_FIRST: "-1"}  # no list can name one
        if not any(path[: len(struct)] == struct for path in [*chosen, *added]):
            added += inner[:1]
    added += [path for path in needed if path not in theirs]
    before = [settings[_COLUMNS]] if theirs else [_written(path) for path in chosen]
    return {_COLUMNS: ",".join([*before, *(_written(path) for path in dict.fromkeys(added) if path not in chosen)])}


def _parsed(columns: str) -> list[Path]:
    """Parse the list of columns in a table property."""
    paths: list[list[str]] = []
    for between, quoted, plain in _PART.findall(columns):
        part = quoted[1:-1].replace("``", "`") if quoted else plain.strip()
        if between == "." and paths:
            paths[-1].append(part)
        elif part:
            paths.append([part])
    return [tuple(path) for path in paths]


def _written(path: Path) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in path)


def _first(settings: Mapping[str, str]) -> int:
    try:
        return int(settings.get(_FIRST, _DEFAULT_FIRST))
    except ValueError:
        return _DEFAULT_FIRST


def _leaves(schema: StructType, above: Path) -> Iterator[tuple[Path, DataType]]:
    for field in schema.fields:
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, (*above, field.name))
        else:
            yield (*above, field.name), field.dataType


def _structs(schema: StructType, above: Path) -> Iterator[Path]:
    for field in schema.fields:
        if isinstance(field.dataType, StructType):
            yield (*above, field.name)
            yield from _structs(field.dataType, (*above, field.name))


def _eligible(kind: DataType) -> bool:
    """Return whether Spark accepts a column of this type in the list; otherwise it refuses the whole list."""
    return isinstance(kind, NumericType | StringType | DateType | TimestampType | TimestampNTZType)
