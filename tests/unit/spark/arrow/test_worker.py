"""A worker counts the offsets of its rows, and copies records as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from sluice.ranges import OffsetRange
from sluice.wal.segment import inspect
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
