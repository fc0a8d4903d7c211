"""Records in several places: each range is asked for where it is to be read, and nowhere else; no JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.ranges import OffsetRange, overlaps
from sluice_spark.sources import parts
from sluice_spark.sources.parts import RecordsInParts


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


class Frame(list[tuple[str, int, int]]):
    """Records, named by whoever gave them."""

    def unionByName(self, other: Frame) -> Frame:
        return Frame([*self, *other])


@dataclass
class Place:
    """A source of everything but what it dropped."""

    name: str
    dropped: list[OffsetRange] = field(default_factory=list)
    verified: list[Any] = field(default_factory=list)

    def read(self, ranges: Sequence[OffsetRange]) -> Any:
        return Frame((self.name, r.partition, offset) for r in ranges for offset in range(r.start, r.end))

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        return overlaps(ranges, self.dropped)

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        self.verified.append((dict(read), list(ranges)))


@pytest.fixture(autouse=True)
def _frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "DataFrame", Frame)


def test_each_offset_comes_from_the_one_place_that_it_is_to_be_read_from() -> None:
    log, kafka = Place("log"), Place("kafka")
    records = RecordsInParts(((log, (span(0, 5), span(0, 3, 1))), (kafka, (span(5, 9),))))
    assert records.read([span(3, 7), span(1, 2, 1)]) == [
        ("log", 0, 3), ("log", 0, 4), ("log", 1, 1), ("kafka", 0, 5), ("kafka", 0, 6),
    ]  # fmt: skip
    assert records.read([span(6, 8)]) == [("kafka", 0, 6), ("kafka", 0, 7)], "the log is not asked for nothing"


def test_missing_is_what_is_gone_where_it_was_to_be_read() -> None:
    log, kafka = Place("log", dropped=[span(0, 2)]), Place("kafka", dropped=[span(0, 6)])
    records = RecordsInParts(((log, (span(0, 5),)), (kafka, (span(5, 9),))))
    assert records.missing([span(0, 9)]) == [span(0, 2), span(5, 6)], "what Kafka dropped is in the log up to 5"
    assert records.missing([span(2, 5), span(6, 9)]) == []


def test_a_source_alone_compares_and_of_several_none_does() -> None:
    alone, other = Place("alone"), Place("other")
    read = {("t", 0): 4}
    RecordsInParts(((alone, (span(0, 5),)),)).verify(read, [span(0, 5)])
    assert alone.verified == [(read, [span(0, 5)])]
    RecordsInParts(((alone, (span(0, 5),)), (other, (span(5, 9),)))).verify(read, [span(0, 9)])
    assert (len(alone.verified), other.verified) == (1, [])
