"""The lag of one partition, by itself."""

from __future__ import annotations

from sluice.lag import PartitionLag, Status


def test_a_status_needs_no_more_than_the_offsets() -> None:
    assert PartitionLag("t", 0, 5, 0, 5).status is Status.OK
    assert PartitionLag("t", 0, 4, 0, 5).status is Status.BACKLOG
    assert PartitionLag("t", 0, None, 0, 5).status is Status.NEW
    assert PartitionLag("t", 0, 4, None, None).status is Status.UNKNOWN
