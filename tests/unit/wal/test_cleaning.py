"""Which sealed batches are not needed any more, by how far they were applied."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.wal import Made

from sluice.wal.cleaning import applied_batch


def test_batches_are_applied_by_their_offsets_and_none_behind_one_that_is_not(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.seal_lines(3, 10)
    log = made.log
    assert applied_batch(log, 1, None) == -1
    assert applied_batch(log, 1, {"t": {0: 10, 1: 10}}) == 0
    assert applied_batch(log, 1, {"t": {0: 30, 1: 20}}) == 1
    assert applied_batch(log, 1, {"t": {0: 30, 1: 30}}) == 2
    assert applied_batch(log, 1, {"t": {0: 30}}) == -1, "a partition of which nothing was applied"
    assert applied_batch(log, 2, {"t": {0: 30, 1: 30}}) == -1, "another epoch"
