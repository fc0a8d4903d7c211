"""Records in several places: each range is read, checked and diagnosed where its records are, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from tests.fixtures.books import span

from sluice.errors import SinkError, SluiceError, SourceUnreachableError
from sluice.ranges import OffsetRange, overlaps
from sluice.wal import DamagedLogError, Segment
from sluice.wal.segment import Damage
from sluice_spark.engine.failures import classify
from sluice_spark.sources import parts
from sluice_spark.sources.held_records import HeldRecords
from sluice_spark.sources.kafka import SIGNS, KafkaReader
from sluice_spark.sources.log import LogRecords
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.strategies.ignore import can_be_ignored


class Frame(list[tuple[str, int, int]]):
    """Records, each with the name of its place."""

    def unionByName(self, other: Frame) -> Frame:
        return Frame([*self, *other])


@dataclass
class Place:
    """A source that dropped some offsets."""

    name: str
    dropped: list[OffsetRange] = field(default_factory=list)
    trouble: SluiceError | None = None
    verify: mock.Mock = field(default_factory=mock.Mock)
    signs = SIGNS

    def read(self, ranges: Sequence[OffsetRange]) -> Any:
        return Frame((self.name, r.partition, offset) for r in ranges for offset in range(r.start, r.end))

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        if self.trouble is not None:
            raise self.trouble
        return overlaps(ranges, self.dropped)

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        return KafkaReader.diagnose(self, error, ranges)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "DataFrame", Frame)


def test_records_in_parts_reads_each_offset_from_its_place() -> None:
    log, kafka = Place("log"), Place("kafka")
    records = RecordsInParts(((log, (span(0, 5), span(0, 3, 1))), (kafka, (span(5, 9),))))
    assert records.read([span(3, 7), span(1, 2, 1)]) == [
        ("log", 0, 3), ("log", 0, 4), ("log", 1, 1), ("kafka", 0, 5), ("kafka", 0, 6),
    ]  # fmt: skip
    assert records.read([span(6, 8)]) == [("kafka", 0, 6), ("kafka", 0, 7)], "the log is asked for nothing"


def test_records_in_parts_misses_offsets_that_their_place_lacks() -> None:
    log, kafka = Place("log", dropped=[span(0, 2)]), Place("kafka", dropped=[span(0, 6)])
    records = RecordsInParts(((log, (span(0, 5),)), (kafka, (span(5, 9),))))
    assert records.missing([span(0, 9)]) == [span(0, 2), span(5, 6)], "offsets up to 5 are in the log"
    assert records.missing([span(2, 5), span(6, 9)]) == []


def test_records_in_parts_compares_counts_only_of_a_single_place() -> None:
    one, other, read = Place("one"), Place("other"), {("t", 0): 4}
    RecordsInParts(((one, (span(0, 5),)), (other, (span(5, 9),)))).verify(read, [span(0, 9)])
    one.verify.assert_not_called()
    other.verify.assert_not_called()
    RecordsInParts(((one, (span(0, 5),)),)).verify(read, [span(0, 5)])
    one.verify.assert_called_once_with(read, [span(0, 5)])


FIRST, SECOND = span(0, 5), span(5, 9)
ODD = RuntimeError("Caused by: java.lang.NullPointerException")
REFUSED = RuntimeError("Caused by: java.net.ConnectException: Connection refused")
DOWN = SourceUnreachableError("no broker", next_step="start it")


def log(*damages: Damage) -> LogRecords:
    """Return a write-ahead log of which some segments are damaged."""
    found = mock.Mock(path="/log", pipeline="p", check=lambda *_, **__: damages)
    return LogRecords(None, found, ())  # type: ignore[arg-type]


def test_kafka_reader_asks_the_broker_before_it_reads_the_message() -> None:
    fine, down = Place("kafka"), Place("kafka", trouble=DOWN)
    assert type(down.diagnose(ODD, [FIRST])) is SourceUnreachableError
    assert type(fine.diagnose(REFUSED, [FIRST])) is SourceUnreachableError
    assert type(fine.diagnose(ODD, [FIRST])) is SluiceError
    assert type(HeldRecords(None, down).diagnose(ODD, [FIRST])) is SourceUnreachableError  # type: ignore[arg-type]
    assert type(classify(RuntimeError("KAFKA_DATA_LOSS"), lambda: None)) is SluiceError, "without a source"


def test_log_whose_storage_does_not_answer_is_no_fault_of_records() -> None:
    """Else a strategy that ignores would give up records that are all there."""
    found = log().diagnose(REFUSED, [FIRST])
    assert type(found) is SinkError
    assert not can_be_ignored(found)


def test_records_in_parts_names_the_place_that_fails_and_damage_before_all() -> None:
    damaged = log(Damage(Segment("e1-000000/part-0.parquet", SECOND, 100, 4, 0, 0, 0), "cut"))
    both = RecordsInParts(((Place("kafka"), (FIRST,)), (damaged, (SECOND,))))
    assert isinstance(both.diagnose(REFUSED, [FIRST, SECOND]), DamagedLogError)
    assert type(both.diagnose(REFUSED, [FIRST])) is SourceUnreachableError, "only the place that was read is asked"
    both = RecordsInParts(((log(), (SECOND,)), (Place("kafka", trouble=DOWN), (FIRST,))))
    assert type(both.diagnose(ODD, [FIRST, SECOND])) is SourceUnreachableError
    assert type(RecordsInParts(((log(), (SECOND,)),)).diagnose(ODD, [SECOND])) is SluiceError
