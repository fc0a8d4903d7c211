"""Parquet files: their rows, as JSON, and how many there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from sluice.sources.files.json_text import check, rows_of
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
        If its rows cannot be told as JSON.
    OSError, ValueError
        If it is not a whole Parquet file.
    """
    opened = _opened(file)
    check(opened.schema_arrow)
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
                yield at + begin, rows_of(batch.slice(begin, stop - begin))
            at += batch.num_rows
            if at >= end:
                return


def _opened(file: IO[bytes]) -> Any:
    import pyarrow.parquet as pq

    # in nanoseconds, which is the default, times of INT96 before 1677 and after 2262 would become others
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us", pre_buffer=False)
