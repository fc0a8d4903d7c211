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

__all__ = ["refuse_beyond", "refuse_boundless", "rows_with"]

_PLACE = ("_topic", "_partition", "_offset")
_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def rows_with(root: str, staged: Staged, name: str, unfit: Callable[[Any], Any]) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and offset of the rows whose value in a column is unfit; none of files without the column.

    Rows that tell no record are numbered.

    Parameters
    ----------
    unfit
        Says of an Arrow array which of its values are, as a NumPy array.
    """
    fs, base = file_system(root)
    count = 0
    for file in staged.files:
        known = file.partition_values
        with fs.open(f"{base}/{unquote(file.path)}", "rb") as handle:
            parquet = pq.ParquetFile(handle)
            if name not in known and name not in parquet.schema_arrow.names:
                continue
            traced = set(_PLACE) <= {*known, *parquet.schema_arrow.names}
            of_row = _PLACE if traced else ()
            wanted = [column for column in dict.fromkeys((name, *of_row)) if column not in known]
            for batch in parquet.iter_batches(1 << 16, columns=wanted):
                columns = {
                    column: pa.repeat(pa.scalar(known[column], pa.string()), batch.num_rows)
                    if column in known
                    else batch.column(column)
                    for column in (name, *of_row)
                }
                chosen = pa.array(np.flatnonzero(unfit(columns[name])))
                count += batch.num_rows
                if not traced:
                    yield from (("", 0, count - batch.num_rows + row) for row in chosen.to_pylist())
                    continue
                topics, partitions, offsets = (columns[part].take(chosen).to_pylist() for part in _PLACE)
                yield from zip(topics, map(int, partitions), map(int, offsets), strict=True)


def refuse_beyond(what: str, root: str, staged: Staged, schema: T.StructType) -> None:
    """Refuse rows with times that Python does not have; the error has their records, where rows tell them.

    Parameters
    ----------
    what
        The sink in words, for the message.

    Raises
    ------
    RowsRefusedError
        If there are such rows.
    """
    _refuse(what, root, staged, schema, _TIMES, "a date or time before year 1 or after year 9999", _is_beyond)


def refuse_boundless(what: str, root: str, staged: Staged, schema: T.StructType) -> None:
    """Refuse rows with texts of which pyiceberg cannot make the upper bound of a file: see :func:`refuse_beyond`.

    It counts the 16th letter up by one, and behind U+D7FF there is no letter.
    """
    _refuse(what, root, staged, schema, T.StringType, "a longer text whose 16th letter is U+D7FF", _is_boundless)


def _refuse(what: str, root: str, staged: Staged, schema: T.StructType, kinds: Any, detail: str, leaf: Any) -> None:
    rows = {
        place: Refusal(detail, field.name)
        for field in reversed(schema.fields)
        if holds(field.dataType, lambda kind: isinstance(kind, kinds)) or isinstance(field.dataType, T.MapType)
        for place in rows_with(root, staged, field.name, lambda values: _anywhere(values, leaf))
    }
    if rows:
        column = next(iter(rows.values())).column
        raise RowsRefusedError(
            f"{what} refuses {len(rows):,} rows, with {detail} in {column}",
            state="nothing of this batch was committed; what was committed before stays",
            next_step=f"add a row rule that refuses such records, or change {column} in the transform",
            rows=rows if "_offset" in schema.names else {},
        )


def _anywhere(values: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return of each value whether a leaf of it is unfit; ``leaf`` says so of values, or returns None."""
    kind = values.type
    if (told := leaf(values)) is not None:
        return told
    found = np.zeros(len(values), dtype=bool)
    if pa.types.is_struct(kind):
        for part in values.flatten():
            found |= _anywhere(part, leaf)
    elif pa.types.is_map(kind):
        pairs = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        return _anywhere(values.cast(pairs), leaf)
    elif pa.types.is_list(kind):
        parents = pc.list_parent_indices(values).to_numpy()
        found[parents[_anywhere(pc.list_flatten(values), leaf)]] = True
    return found


def _is_beyond(values: Any) -> Any:
    """Return of each date or time whether it is before year 1 or after 9999: Python has none."""
    if pa.types.is_timestamp(values.type):
        return _outside(values, _FIRST * _DAY, (_LAST + 1) * _DAY - 1)
    return _outside(values.cast(pa.int32()), _FIRST, _LAST) if pa.types.is_date32(values.type) else None


def _is_boundless(values: Any) -> Any:
    if not pa.types.is_string(values.type):
        return None
    return pc.fill_null(pc.match_substring_regex(values, r"(?s)^.{15}\x{D7FF}."), False).to_numpy(zero_copy_only=False)


def _outside(numbers: Any, first: int, last: int) -> Any:
    found = pc.fill_null(numbers.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return (found < first) | (found > last)
