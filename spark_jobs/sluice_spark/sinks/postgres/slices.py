"""The rows of a slice as a condition of SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sluice.pipeline.window import END, START
from sluice.postgres import literal, name_of
from sluice.ranges import OffsetRange
from sluice_spark.sinks.parquet.all_rows import AllRows
from sluice_spark.sinks.parquet.rows_by_key import RowsByKey
from sluice_spark.sinks.parquet.rows_by_run import RowsByRun
from sluice_spark.sinks.parquet.rows_by_time import RowsByTime
from sluice_spark.sinks.parquet.slice import Slice

__all__ = ["ingest", "within"]

_KEYS = "pg_temp.sluice_keys"
_FIRST, _LAST = -210_866_803_200_000, 9_224_318_016_000_000
"""PostgreSQL's times are between these, in milliseconds since 1970."""


def ingest(cursor: Any, gone: RowsByKey, travelling: pa.Schema) -> None:
    """Copy the keys of a slice into a temporary table, for :func:`within`.

    Parameters
    ----------
    travelling
        The types in which the columns of rows travel.
    """
    wanted = pa.schema([travelling.field(name) for name in gone.keys])
    rows = [batch.select(list(gone.keys)).cast(wanted) for batch in gone.rows]
    cursor.execute(f"DROP TABLE IF EXISTS {_KEYS}")  # of a session that a pooler lends
    cursor.adbc_ingest("sluice_keys", pa.RecordBatchReader.from_batches(wanted, rows), mode="create", temporary=True)


def within(gone: Slice, table: str, kinds: Mapping[str, str]) -> str:
    """Return the condition of a slice's rows.

    Parameters
    ----------
    table
        The name of the table, as SQL.
    kinds
        The types of its columns, as PostgreSQL writes them, if rows are chosen by their keys.
    """
    match gone:
        case AllRows():
            return "true"
        case RowsByRun():
            return f"_run IN ({', '.join(map(literal, sorted(gone.runs))) or 'NULL'})"
        case RowsByTime():
            at = name_of(gone.column)
            after = gone.after and f"{name_of(gone.after[0])} > {_moment(gone.after[1])}"
            return " AND ".join(filter(None, [*_between(at, gone), after])) or f"{at} IS NOT NULL"
        case RowsByKey():
            return _of_keys(gone, table, kinds)
    in_time = " AND ".join(_between("_timestamp", gone)) or "true"
    return f"({' OR '.join(map(_in_range, gone.ranges)) or 'false'}) AND {in_time}"


def _of_keys(gone: RowsByKey, table: str, kinds: Mapping[str, str]) -> str:
    times = [name for name in gone.keys if name in (START, END)]  # never null, and perhaps indexed
    # a number without a scale has its own: 1.5 and 1.50 are equal
    numbers = [name for name in gone.keys if kinds[name] == "numeric"]
    others = [name for name in gone.keys if name not in (*times, *numbers)]
    same = [f"keys.{name_of(name)} = {table}.{name_of(name)}" for name in times]
    same += [f"{table}.{name_of(name)} IS NOT DISTINCT FROM keys.{name_of(name)}::numeric" for name in numbers]
    if others:  # as texts: equal values of any other type have the same one, and so have NULLs
        ours = ", ".join(f"{table}.{name_of(name)}" for name in others)
        theirs = ", ".join(f"keys.{name_of(name)}::{kinds[name]}" for name in others)
        same.append(f"ROW({ours})::text = ROW({theirs})::text")
    return f"EXISTS (SELECT FROM {_KEYS} AS keys WHERE {' AND '.join(same)})"


def _in_range(item: OffsetRange) -> str:
    return (
        f"(_topic = {literal(item.topic)} AND _partition = {item.partition} AND _offset >= {item.start} "
        f"AND _offset < {item.end})"
    )


def _between(column: str, gone: Slice) -> list[str]:
    """Return the conditions that a time is in the interval of a slice."""
    ever, limits = Slice([]), []
    if gone.start != ever.start:
        limits.append(f"{column} >= {_moment(gone.start)}")
    if gone.end != ever.end:
        limits.append(f"{column} < {_moment(gone.end)}")
    return limits


def _moment(milliseconds: int) -> str:
    if not _FIRST < milliseconds < _LAST:
        return f"timestamptz '{'-' if milliseconds < 0 else ''}infinity'"
    # in microseconds, which are exact; to_timestamp() takes a double
    return f"(timestamptz 'epoch' + {milliseconds} * interval '1 millisecond')"
