"""The handle of a segment, from its footer."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.wal.segment import inspect


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_a_record_time_that_python_has_no_date_for_is_one_like_any_other(tmp_path: Path, unit: str) -> None:
    """A producer that takes microseconds for milliseconds names the year 45000."""
    times = [1_362_096_000_000, 1_362_096_000_000_000]
    stamps = [time * (1_000 if unit == "us" else 1) for time in times]
    records = pa.table(
        {
            "topic": ["t", "t"],
            "partition": pa.array([3, 3], pa.int32()),
            "offset": pa.array([7, 9], pa.int64()),
            "timestamp": pa.array(stamps, pa.timestamp(unit, "UTC")),
        }
    )
    pq.write_table(records, tmp_path / "part.parquet")
    segment = inspect(fsspec.filesystem("file"), str(tmp_path), "part.parquet")
    assert (segment.first, segment.last) == tuple(times)
    assert (segment.range.start, segment.range.end, segment.records) == (7, 10, 2)
