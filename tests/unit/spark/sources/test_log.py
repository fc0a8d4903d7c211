"""Records that were read from the write-ahead log are compared with the number that was sealed."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.fixtures.wal import Made, record, span

from sluice.errors import SinkError
from sluice.wal import DamagedLogError
from sluice_spark.sources.log import LogRecords, layers


def of(made: Made) -> LogRecords:
    return LogRecords(cast(Any, None), made.log, tuple(made.log.segments()))


def test_wal_segments_must_give_as_many_records_as_were_sealed(made: Made) -> None:
    made.seal(0, [[record(0), record(1), record(4)], [record(0, 1)]], [span(0, 6), span(0, 2, 1)])
    made.seal(1, [[record(6), record(7)]], [span(6, 8)])
    records = of(made)
    records.verify({("t", 0): 5, ("t", 1): 1}, [span(0, 8), span(0, 2, 1)])
    records.verify({("t", 0): 3, ("t", 1): 0}, [span(0, 6)])
    records.verify({("t", 0): 2}, [span(6, 8)])
    for read in ({("t", 0): 4}, {("t", 0): 6}, {("t", 1): 5}, {}):
        with pytest.raises(SinkError, match="5") as caught:
            records.verify(read, [span(0, 8)])
        assert type(caught.value) is SinkError


def test_wal_parts_of_segments_are_not_compared_and_no_landed_offset_is_missing(made: Made) -> None:
    made.seal(0, [[record(0), record(1), record(4)]], [span(0, 6)])
    of(made).verify({("t", 0): 1}, [span(0, 1)])
    of(made).verify({("t", 0): 1}, [span(0, 2), span(3, 6)])
    with pytest.raises(SinkError, match=r"1 .* 3"):
        of(made).verify({("t", 0): 1}, [span(0, 2), span(2, 6)])
    assert of(made).missing([span(0, 9)]) == []


def test_wal_names_damaged_segments_when_records_are_too_few(made: Made) -> None:
    segments = [*made.seal(0, [[record(o) for o in range(3)]]), *made.seal(1, [[record(o) for o in range(3, 6)]])]
    made.file(segments[1]).write_bytes(made.file(segments[1]).read_bytes()[:-9])
    records = LogRecords(cast(Any, None), made.log, tuple(segments))
    with pytest.raises(DamagedLogError, match=r"t-0 \[3, 6\)") as caught:
        records.verify({("t", 0): 3}, [span(0, 6)])
    assert "t-0 [0, 3)" not in caught.value.what
    assert "--recovery ignore_range" in caught.value.next_step
    records.explain([span(0, 3)])


def test_wal_reads_an_offset_of_two_epochs_from_the_newest(made: Made) -> None:
    made.seal(0, [[record(n) for n in range(6)]], [span(0, 6)])
    (old,) = made.log.segments()
    alone = layers([old], [span(1, 4)])
    assert alone == [((old,), [span(1, 4)])]
    Made(made.root, epoch=2).seal(0, [[record(n) for n in range(4, 9)]], [span(4, 9)])
    both = made.log.segments()
    assert [(s.epoch, s.range) for s in both] == [(1, span(0, 6)), (2, span(4, 9))]
    found = layers(both, [span(1, 8)])
    assert [([s.epoch for s in layer], parts) for layer, parts in found] == [([2], [span(4, 8)]), ([1], [span(1, 4)])]
    of(made).verify({("t", 0): 0}, [span(0, 9)])
