"""What a place of records makes of a job that failed while it read from there; no JVM, no broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.errors import SinkError, SluiceError, SourceUnreachableError
from sluice.ranges import OffsetRange
from sluice.wal import DamagedLogError, Segment
from sluice.wal.segment import Damage
from sluice_spark.engine.failures import classify
from sluice_spark.sources.held import HeldRecords
from sluice_spark.sources.kafka import SIGNS, KafkaReader
from sluice_spark.sources.log import LogRecords
from sluice_spark.sources.parts import RecordsInParts
from sluice_spark.strategies.ignore import can_be_ignored

FIRST, SECOND = OffsetRange("t", 0, 0, 5), OffsetRange("t", 0, 5, 9)
ODD = RuntimeError("Caused by: java.lang.NullPointerException")
REFUSED = RuntimeError("Caused by: java.net.ConnectException: Connection refused")


class Log:
    """A write-ahead log of which some segments are damaged."""

    path, pipeline = "/log", "p"

    def __init__(self, damages: Sequence[Any] = ()) -> None:
        self.damages = damages

    def check(self, segments: Any, *, pages: bool = False) -> Sequence[Any]:
        return self.damages


class Broker:
    """What :class:`KafkaReader` is of its broker."""

    signs = SIGNS

    def __init__(self, trouble: SluiceError | None = None) -> None:
        self.trouble = trouble

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        if self.trouble is not None:
            raise self.trouble
        return []

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        return KafkaReader.diagnose(self, error, ranges)  # type: ignore[arg-type]

    def read(self, ranges: Sequence[OffsetRange]) -> Any:
        raise NotImplementedError

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        raise NotImplementedError


def log(damages: Sequence[Any] = ()) -> LogRecords:
    return LogRecords(None, Log(damages), ())  # type: ignore[arg-type]


def test_kafka_is_asked_before_the_message_is_read() -> None:
    down = SourceUnreachableError("no broker", next_step="start it")
    assert type(Broker(down).diagnose(ODD, [FIRST])) is SourceUnreachableError
    assert type(Broker().diagnose(REFUSED, [FIRST])) is SourceUnreachableError
    assert type(Broker().diagnose(ODD, [FIRST])) is SluiceError
    assert type(HeldRecords(None, Broker(down)).diagnose(ODD, [FIRST])) is SourceUnreachableError  # type: ignore[arg-type]


def test_storage_of_the_log_that_does_not_answer_is_no_fault_of_records() -> None:
    """Else a strategy that ignores would give up records that are all there."""
    found = log().diagnose(REFUSED, [FIRST])
    assert type(found) is SinkError
    assert not can_be_ignored(found)


def test_damage_of_the_log_is_told_whatever_the_message_says() -> None:
    damages = [Damage(Segment("e1-000000/part-0.parquet", SECOND, 100, 4, 0, 0, 0), "cut")]
    both = RecordsInParts(((Broker(), (FIRST,)), (log(damages), (SECOND,))))
    assert isinstance(both.diagnose(REFUSED, [FIRST, SECOND]), DamagedLogError)
    assert type(both.diagnose(REFUSED, [FIRST])) is SourceUnreachableError, "only who was read is asked"


def test_of_two_places_the_one_that_fails_is_named() -> None:
    down = SourceUnreachableError("no broker", next_step="start it")
    both = RecordsInParts(((log(), (SECOND,)), (Broker(down), (FIRST,))))
    assert type(both.diagnose(ODD, [FIRST, SECOND])) is SourceUnreachableError
    assert type(RecordsInParts(((log(), (SECOND,)),)).diagnose(ODD, [SECOND])) is SluiceError


def test_without_a_source_a_message_of_kafkas_says_nothing() -> None:
    assert type(classify(RuntimeError("KAFKA_DATA_LOSS"), lambda: None)) is SluiceError
