"""A write-ahead log: coverage, applied batches, and segments."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.fixtures.wal import EPOCH, Made

from sluice.wal import WriteAheadLog
from sluice.wal.cleaning import applied_batch
from sluice.wal.coverage import coverage
from sluice.wal.segment import inspect


def test_wal_covers_offsets_from_the_oldest_segment_to_the_newest(tmp_path: Path) -> None:
    assert coverage(WriteAheadLog(str(tmp_path / "none"), "p")) == []
    made = Made(tmp_path / "log")
    made.seal_lines(3, 10)
    found = [(c.topic, c.partition, c.start, c.end, c.segments) for c in coverage(made.log)]
    assert found == [("t", 0, 0, 30, 3), ("t", 1, 0, 30, 3)]
    made.log.clean(EPOCH + timedelta(seconds=15), applied={1: 2})
    first = coverage(made.log)[0]
    assert (first.start, first.end, first.segments) == (10, 30, 2), "it begins later after a cleaning"
    assert first.since == int((EPOCH + timedelta(seconds=10)).timestamp() * 1000)


def test_wal_applied_batch_is_the_last_whose_offsets_and_all_before_are_applied(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.seal_lines(3, 10)
    log = made.log
    assert applied_batch(log, 1, None) == -1
    assert [applied_batch(log, 1, {"t": {0: n, 1: m}}) for n, m in ((10, 10), (30, 20), (30, 30))] == [0, 1, 2]
    assert applied_batch(log, 1, {"t": {0: 30}}) == -1, "nothing of a partition was applied"
    assert applied_batch(log, 2, {"t": {0: 30, 1: 30}}) == -1, "another epoch"


def test_wal_cleaning_removes_old_commits_once_no_batch_waits(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.seal_lines(3, 10)
    DeltaTable(str(tmp_path / "log")).create_checkpoint()
    commits = sorted((tmp_path / "log" / "_delta_log").glob("*.json"))
    long_ago = time.time() - timedelta(days=40) / timedelta(seconds=1)
    for commit in commits[:-1]:
        os.utime(commit, (long_ago, long_ago))
    segments = made.log.segments()
    made.log.clean(EPOCH, applied={1: 1})
    assert all(commit.exists() for commit in commits), "batch 2 is found by its commit"
    made.log.clean(EPOCH, applied={1: 2})
    assert [commit for commit in commits if commit.exists()] == commits[-1:]
    made.log.refresh()
    assert (made.log.segments(), made.log.version(1)) == (segments, 2)


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_wal_segment_takes_a_record_time_that_python_has_no_date_for(tmp_path: Path, unit: str) -> None:
    """A producer that takes microseconds for milliseconds names the year 45000."""
    times = [1_362_096_000_000, 1_362_096_000_000_000]
    stamps = pa.array([time * (1_000 if unit == "us" else 1) for time in times], pa.timestamp(unit, "UTC"))
    records = {"topic": ["t", "t"], "partition": pa.array([3, 3], pa.int32()), "offset": [7, 9], "timestamp": stamps}
    pq.write_table(pa.table(records), tmp_path / "part.parquet")
    segment = inspect(fsspec.filesystem("file"), str(tmp_path), "part.parquet")
    assert (segment.first, segment.last) == tuple(times)
    assert (segment.range.start, segment.range.end, segment.records) == (7, 10, 2)
