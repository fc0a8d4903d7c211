"""A worker counts the offsets of its rows, copies records as they are, and writes dictionaries where they pay."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from sluice.ranges import OffsetRange
from sluice.wal.segment import inspect
from sluice_spark.arrow import files as arrow_files
from sluice_spark.arrow.files import Files
from sluice_spark.arrow.worker import Copying, _distinct
from sluice_spark.sources.kafka_input import KafkaChunk

OFFSETS = st.integers(0, 2**63 - 1) | st.integers(0, 5)


@given(st.lists(OFFSETS, min_size=1))
def test_worker_counts_each_offset_once_in_whatever_order_a_transform_leaves_its_rows(offsets: list[int]) -> None:
    assert _distinct(np.array(offsets, dtype=np.int64)) == (min(offsets), max(offsets), len(set(offsets)))


@pytest.mark.parametrize("headers", [None, [("a", b"x"), ("a", None)]])
def test_worker_copies_a_record_as_it_is_with_its_place(tmp_path: Path, headers: Any) -> None:
    messages = [
        Message("t", 3, 5, key=None, value=b"secret", timestamp=(1, 1000)),
        Message("t", 3, 9, key=b"k", value=None, timestamp=(1, 1007), headers=headers),
    ]
    chunk = KafkaChunk(messages, np.array([5, 9]), np.array([1000, 1007]), np.ones(2, np.int32))
    reader: Any = mock.Mock(read=lambda _: iter([chunk]))
    (file,) = Copying(str(tmp_path)).process(reader, OffsetRange("t", 3, 5, 10)).files
    there = pq.read_table(tmp_path / file.name).to_pylist()
    assert [(r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in there] == [
        ("t", 3, 5, None, b"secret"), ("t", 3, 9, b"k", None),
    ]  # fmt: skip
    assert [r["headers"] for r in there] == [None, headers and [{"key": k, "value": v} for k, v in headers]]
    handle = inspect(fsspec.filesystem("file"), str(tmp_path), file.name)
    assert (handle.range, handle.records, handle.first, handle.last) == (OffsetRange("t", 3, 5, 10), 2, 1000, 1007)
    group = pq.ParquetFile(tmp_path / file.name).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {name for name, column in columns.items() if column.statistics is not None} == {
        "topic", "partition", "offset", "timestamp",
    }  # fmt: skip


def encodings(folder: Path, table: pa.Table) -> dict[str, bool]:
    """Write a file, and return which of its columns have a dictionary."""
    with Files(str(folder), table.schema) as written:
        written.add(table)
        (file,) = written.keep()
    group = pq.ParquetFile(folder / file.name).metadata.row_group(0)
    return {c.path_in_schema: c.has_dictionary_page for c in map(group.column, range(group.num_columns))}


VARIED, CONSTANT = (100, False, "a"), (100, True, "a")
"""Rows, whether their first column is constant, and its name; 100 of them tell how to write the next file."""


@pytest.mark.parametrize(
    "files",
    [
        [(VARIED, False), (CONSTANT, False), (CONSTANT, True)],  # each file as the one before
        [((1, True, "a"), False), (CONSTANT, True), ((99, False, "a"), False), (VARIED, True)],  # that had so many rows
        # of the same schema: with a third one, none is known
        [(VARIED, False), ((100, True, "c"), True), (CONSTANT, False), ((100, True, "d"), True), (CONSTANT, True)],
    ],
    ids=["before", "few", "schemas"],
)
def test_parquet_columns_have_dictionaries_by_the_files_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[tuple[tuple[int, bool, str], bool]]
) -> None:
    for name, value in (("_ROWS", 250), ("_TELLING", 100), ("_SCHEMAS", 2), ("_REPEATING", arrow_files._Repeating())):
        monkeypatch.setattr(arrow_files, name, value)
    for (count, constant, name), dictionary in files:
        table = pa.table({name: [0 if constant else n for n in range(count)], "b": ["x"] * count})
        assert encodings(tmp_path, table) == {name: dictionary, "b": count > 1}, (count, constant)
