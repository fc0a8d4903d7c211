"""Finds the rows of staged files whose values a table does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import types as T

from sluice.storage import file_system
from sluice_spark.columns import holds
from sluice_spark.sinks.base import Refusal, RowsRefusedError, Staged

__all__ = ["refuse_beyond", "rows_with"]

_PLACE = ("_topic", "_partition", "_offset")
_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def rows_with(root: str, staged: Staged, name: str, unfit: Callable[[Any], Any]) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and offset of the rows whose value in a column is unfit; none of files without the column.

    Parameters
    ----------
    unfit
        Says of an Arrow array which of its values are, as a NumPy array.
    """
    fs, base = file_system(root)
    for file in staged.files:
        known = file.partition_values
        with fs.open(f"{base}/{unquote(file.path)}", "rb") as handle:
            parquet = pq.ParquetFile(handle)
            if name not in known and name not in parquet.schema_arrow.names:
                continue
            wanted = [column for column in dict.fromkeys((name, *_PLACE)) if column not in known]
            for batch in parquet.iter_batches(1 << 16, columns=wanted):
                columns = {
                    column: pa.repeat(pa.scalar(known[column], pa.string()), batch.num_rows)
                    if column in known
                    else batch.column(column)
                    for column in (name, *_PLACE)
                }
                chosen = pa.array(np.flatnonzero(unfit(columns[name])))
                topics, partitions, offsets = (columns[part].take(chosen).to_pylist() for part in _PLACE)
                yield from zip(topics, map(int, partitions), map(int, offsets), strict=True)


def refuse_beyond(what: str, root: str, staged: Staged, schema: T.StructType) -> None:
    """Refuse rows with times that Python does not have, where rows tell their records.

    Parameters
    ----------
    what
        The sink in words, for the message.

    Raises
    ------
    RowsRefusedError
        If there are such rows.
    """
    if "_offset" not in schema.names:
        return
    rows = {
        place: Refusal("a date or time before year 1 or after year 9999", field.name)
        for field in reversed(schema.fields)
        if holds(field.dataType, lambda kind: isinstance(kind, _TIMES)) or isinstance(field.dataType, T.MapType)
        for place in rows_with(root, staged, field.name, _is_beyond)
    }
    if rows:
        column = next(iter(rows.values())).column
        raise RowsRefusedError(
            f"{what} refuses {len(rows):,} rows, with times before year 1 or after year 9999 in {column}",
            state="nothing of this batch was committed; what was committed before stays",
            next_step=f"add a row rule that refuses such records, or write {column} as a text",
            rows=rows,
        )


def _is_beyond(values: Any) -> Any:
    """Return of each value whether it is, or holds, a date or time before year 1 or after 9999: Python has none."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return _outside(values, _FIRST * _DAY, (_LAST + 1) * _DAY - 1)
    if pa.types.is_date32(kind):
        return _outside(values.cast(pa.int32()), _FIRST, _LAST)
    found = np.zeros(len(values), dtype=bool)
    if pa.types.is_struct(kind):
        for part in values.flatten():
            found |= _is_beyond(part)
    elif pa.types.is_map(kind):
        pairs = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        return _is_beyond(values.cast(pairs))
    elif pa.types.is_list(kind):
        parents = pc.list_parent_indices(values).to_numpy()
        found[parents[_is_beyond(pc.list_flatten(values))]] = True
    return found


def _outside(numbers: Any, first: int, last: int) -> Any:
    found = pc.fill_null(numbers.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return (found < first) | (found > last)
