"""Parquet files: their rows, as JSON, and how many there are."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from sluice.sources.files.json_text import UnfitError, check, moments, rows_of
from sluice.sources.files.rows import Counted

__all__ = ["count", "rows"]

_ROWS = 10_000
_LARGEST = 64 << 20
"""Bytes of the rows that are read at once, unless one row has more."""


def count(file: IO[bytes]) -> Counted:
    """Return the number of rows that a file's footer states.

    Raises
    ------
    UnfitError
        If its rows cannot be written as JSON.
    OSError, ValueError
        If it is not a whole Parquet file.
    """
    opened = _opened(file)
    check(opened.schema_arrow)
    if variant := re.search(r"group field_id=\S+ (.*) \(Variant\(", str(opened.schema)):  # Arrow has a struct of bytes
        raise UnfitError(f"its column {variant[1]!r} is a VARIANT, which only Spark reads")
    nested = [f.name for f in opened.schema_arrow if f.type.num_fields and _has_moments(f.type)]
    if nested and _is_legacy(opened):
        raise UnfitError(f"its column {nested[0]!r} has dates or times within, in the calendar of Spark before 3.0")
    columns = {field.name: str(field.type) for field in opened.schema_arrow}
    return Counted(opened.metadata.num_rows, json.dumps(columns, ensure_ascii=False).encode())


def rows(file: IO[bytes], *, start: int, end: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield rows of a file as JSON, in lists, each with the number of its first row.

    Row groups without any of these rows are not read.

    Parameters
    ----------
    start, end
        The numbers of the first row, and of the row after the last one.
    """
    opened = _opened(file)
    groups: list[int] = []
    at = first = 0
    for number in range(opened.metadata.num_row_groups):
        size = opened.metadata.row_group(number).num_rows
        if at < end and at + size > start:
            first = first if groups else at
            groups.append(number)
        at += size
    if not groups:
        return
    at = first
    for number in groups:
        group = opened.metadata.row_group(number)
        size = max(1, min(_ROWS, _LARGEST * group.num_rows // max(1, group.total_byte_size)))
        for batch in opened.iter_batches(batch_size=size, row_groups=[number], use_threads=False):
            begin, stop = max(start - at, 0), min(end - at, batch.num_rows)
            if begin < stop:
                part = batch.slice(begin, stop - begin)
                yield at + begin, rows_of(_marked(part) if _is_legacy(opened) else part)
            at += batch.num_rows
            if at >= end:
                return


def _opened(file: IO[bytes]) -> Any:
    import pyarrow.parquet as pq

    # in nanoseconds, which is the default, times of INT96 before 1677 and after 2262 would become others
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us", pre_buffer=False)


# --- the calendar of Spark before 3.0 -------------------------------------------------------------------------------

_HYBRID = b" (written in Spark's hybrid calendar)"
_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def _is_legacy(opened: Any) -> bool:
    """Return whether old dates and times may be of Spark's hybrid calendar (``DataSourceUtils.datetimeRebaseSpec``)."""
    told = opened.metadata.metadata or {}
    version = told.get(b"org.apache.spark.version", b"3").split(b".")[0]
    return any(mark in told for mark in _MARKS) or version in (b"1", b"2")


def _marked(batch: Any) -> Any:
    """Return the rows with such dates and times as texts that no decoder takes for a date or time."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([*map(_marked_column, batch.columns)], names=batch.schema.names)


def _marked_column(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_date(column.type):
        first = datetime.date(1582, 10, 15)
    elif pa.types.is_timestamp(column.type):  # the day depends on the writer's zone, which had an odd offset until then
        first = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC if column.type.tz else None)
    else:
        return column
    text, end = moments(column), pa.scalar(b"", pa.binary())
    old = pc.less(column, pa.scalar(first, column.type))
    return pc.if_else(old, pc.binary_join_element_wise(text, pa.scalar(_HYBRID), end), text).cast(pa.string())


def _has_moments(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return True
    return any(_has_moments(kind.field(n).type) for n in range(kind.num_fields))
