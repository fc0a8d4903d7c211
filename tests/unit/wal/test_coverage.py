"""How far a write-ahead log reaches back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.fixtures.wal import EPOCH, Made

from sluice.wal import WriteAheadLog
from sluice.wal.coverage import coverage


def test_each_partition_is_held_from_its_oldest_segment_to_its_newest(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.seal_lines(3, 10)
    found = [(c.topic, c.partition, c.start, c.end, c.segments) for c in coverage(made.log)]
    assert found == [("t", 0, 0, 30, 3), ("t", 1, 0, 30, 3)]


def test_after_a_cleaning_it_begins_later(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.seal_lines(3, 10)
    threshold = EPOCH + timedelta(seconds=15)
    made.log.clean(threshold, applied={1: 2})
    first = coverage(made.log)[0]
    assert (first.start, first.end, first.segments) == (10, 30, 2)
    assert first.since == int((EPOCH + timedelta(seconds=10)).timestamp() * 1000)


def test_a_log_that_was_never_written_holds_nothing(tmp_path: Path) -> None:
    assert coverage(WriteAheadLog(str(tmp_path / "none"), "p")) == []
