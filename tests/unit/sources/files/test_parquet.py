"""Parquet files: counted by their footer, read by row groups, and named if they are not whole."""

from __future__ import annotations

import io
import json
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.sources.files.parquet import count, rows


def written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def read(data: bytes, start: int = 0, end: int = 1 << 60) -> list[tuple[int, bytes]]:
    found = rows(io.BytesIO(data), start=start, end=end)
    return [(first + n, row) for first, part in found for n, row in enumerate(part)]


def test_parquet_file_is_read_in_parts_by_its_row_groups() -> None:
    data = written(pa.table({"id": range(25)}), row_group_size=7)
    assert count(io.BytesIO(data)).rows == 25
    everything = [(n, b'{"id":%d}' % n) for n in range(25)]
    for start in range(26):
        for end in range(start, 27):
            assert read(data, start, end) == everything[start:end]


def test_parquet_header_names_the_columns() -> None:
    data = written(pa.table({"id": pa.array([], pa.int32()), "é": pa.array([], pa.list_(pa.string()))}))
    found = count(io.BytesIO(data))
    assert (found.rows, json.loads(found.header or b"")) == (0, {"id": "int32", "é": "list<element: string>"})


def test_parquet_times_of_old_writers_are_read() -> None:
    table = pa.table({"at": [datetime(1600, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]})
    data = written(table, use_deprecated_int96_timestamps=True)
    assert [row for _, row in read(data)] == [
        b'{"at":"1600-01-01 00:00:00.000000"}', b'{"at":"9999-12-31 23:59:59.999999"}',
    ]  # fmt: skip


def test_parquet_file_that_is_cut_short_cannot_be_counted() -> None:
    data = written(pa.table({"id": range(25)}))
    for cut in (0, 3, 50, len(data) - 9, len(data) - 1):
        with pytest.raises((OSError, ValueError)):
            count(io.BytesIO(data[:cut]))
