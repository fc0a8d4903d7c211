"""Ranges are read in chunks of bounded size, however large the records are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message

from sluice.local import kafka
from sluice.local.kafka import Topics
from sluice.ranges import OffsetRange
from sluice_spark.arrow import worker
from sluice_spark.sources import kafka_input
from sluice_spark.sources.inputs import UnreadableError
from sluice_spark.sources.kafka_input import KafkaChunk, KafkaInput

MEGABYTE = 1 << 20
LARGE = b"x" * MEGABYTE
END = KafkaError(KafkaError._PARTITION_EOF)
"""The event at the end of a partition."""


def record(offset: int, *, partition: int = 0, error: KafkaError | None = None) -> Message:
    """Return a record of one megabyte, or an event."""
    return Message("t", partition, offset, value=LARGE, timestamp=(1, 1000), error=error)


class Broker:
    """A consumer of a broker that has what is asked for; at first only a few records, as in the first milliseconds."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0

    def assign(self, parts: Sequence[Any]) -> None:
        """Begin at an offset."""
        self._at = parts[0].offset

    def consume(self, most: int, _: float) -> list[Message]:
        """Return the next records."""
        first, self._at = self._at, self._at + (most if self._at else min(most, 5))
        return [record(n) for n in range(first, self._at)]

    def close(self) -> None:
        """Do nothing."""


def read(monkeypatch: pytest.MonkeyPatch, consumer: type[Broker], *ranges: tuple[int, int]) -> list[list[KafkaChunk]]:
    """Return the chunks of each range that one reader gets of a consumer."""
    monkeypatch.setattr(kafka_input, "Consumer", consumer)
    with KafkaInput({}, False).opened() as reader:
        return [list(reader.read(OffsetRange("t", 0, *span))) for span in ranges]


def offsets(chunks: Sequence[KafkaChunk]) -> list[int]:
    return [n for chunk in chunks for n in chunk.offsets.tolist()]


def test_kafka_reader_takes_few_large_records_in_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    (chunks,) = read(monkeypatch, Broker, (0, 500))
    assert offsets(chunks) == list(range(500))
    assert max(len(chunk.messages) for chunk in chunks) * MEGABYTE <= kafka_input._BYTES


def test_kafka_record_whose_time_no_timestamp_holds_has_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nanoseconds(Broker):
        def consume(self, most: int, _: float) -> list[Message]:
            self._at += 1
            time = 1_700_000_000_000_000_000 if self._at > 1 else 7
            return [Message("t", 0, self._at - 1, value=b"{}", timestamp=(1, time))]

    ((chunk,),) = read(monkeypatch, Nanoseconds, (0, 2))
    assert chunk.records()["timestamp"].cast(pa.int64()).to_pylist() == [7000, (2**63 - 1) // 1000 * 1000]


def late(first: Message, then: int) -> type[Broker]:
    """Return a consumer to which something foreign comes first, and then what was asked for, from an offset on."""

    class Late(Broker):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            self._left = [first]

        def consume(self, most: int, wait: float) -> list[Message]:
            if self._left:
                self._at = then
                return [self._left.pop()]
            return super().consume(most, wait)

    return Late


def test_kafka_reader_ignores_the_end_of_another_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    (chunks,) = read(monkeypatch, late(record(1000, partition=7, error=END), 0), (0, 10))
    assert offsets(chunks) == list(range(10))


@pytest.mark.parametrize("offset", [0, 9, 1000])
def test_kafka_reader_refuses_a_record_of_another_partition(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    with pytest.raises(UnreadableError, match="another partition"):
        read(monkeypatch, late(record(offset, partition=7), 1), (0, 10))


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([*map(record, (0, 1, 2, 6, 7, 8, 9, 10, 11))], [[0, 1, 2], [6], [7, 8, 9]]),
        ([*map(record, (0, 1, 2)), record(12, error=END)], [[0, 1, 2], [], []]),
        ([*map(record, (0, 8)), record(12, error=END)], [[0], [], [8]]),
    ],
    ids=["a gap", "the end of the partition", "both"],
)
def test_kafka_reader_keeps_what_came_beyond_a_range_for_the_next(
    monkeypatch: pytest.MonkeyPatch, came: list[Message], expected: list[list[int]]
) -> None:
    left = list(came)

    class Given(Broker):
        def consume(self, most: int, _: float) -> list[Message]:
            found = left[:most]
            del left[:most]
            return found

    assert list(map(offsets, read(monkeypatch, Given, (0, 4), (4, 7), (7, 10)))) == expected


def offsets_of(reader: Any, name: str, partition: int, start: int, end: int) -> list[int]:
    """Return the offsets that come of a range."""
    chunks = list(reader.read(OffsetRange(name, partition, start, end)))
    assert {m.partition() for chunk in chunks for m in chunk.messages} <= {partition}
    return offsets(chunks)


@pytest.mark.kafka
def test_kafka_reader_goes_on_with_what_it_fetched_and_reads_ranges_in_any_order(
    broker: kafka.Broker, topics: Topics, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, chance = topic(3, retention_ms=-1), random.Random(3)
    topics.produce(name, [(n % 3, b"k%d" % n, b"v") for n in range(120)])
    for commit in (True, False, False, True):
        topics.produce_transaction(name, [(0, b"t", b"v") for _ in range(5)], commit=commit)
    end = topics.ends(name)[0]
    opened: list[Any] = []
    consumer = kafka_input.Consumer
    monkeypatch.setattr(kafka_input, "Consumer", lambda *a, **k: opened.append(1) or consumer(*a, **k))
    source = KafkaInput({"bootstrap.servers": broker.bootstrap}, True)
    with source.opened() as reader:
        expected = offsets_of(reader, name, 0, 0, end)
        assert 40 < len(expected) < end
        for _ in range(20):
            partition, start = chance.randrange(3), chance.randrange(40)
            stop = chance.choice([start + 1, 40, min(40, start + 10)])
            assert offsets_of(reader, name, partition, start, stop) == list(range(start, stop))
    for step in (1, 3, 7, 26):
        opened.clear()
        with source.opened() as reader:
            cuts = [*range(0, end, step), end]
            assert [n for a, b in pairwise(cuts) for n in offsets_of(reader, name, 0, a, b)] == expected
            assert len(opened) == 1
            assert offsets_of(reader, name, 0, 2, end) == [n for n in expected if n >= 2]
            assert len(opened) == 2


@pytest.mark.kafka
def test_kafka_reader_forgets_an_error_that_is_no_end_of_the_partition(
    broker: kafka.Broker, topics: Topics, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1, retention_ms=-1)
    topics.produce(name, [(0, b"k%d" % n, b"v") for n in range(20)])

    class Event:
        """As librdkafka reports what it goes on after by itself: it has no offset."""

        def error(self) -> KafkaError:
            return KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)

        def offset(self) -> None:
            return None

    class Consumer(kafka_input.Consumer):  # type: ignore[misc]
        def consume(self, *arguments: Any) -> list[Any]:
            return [*super().consume(*arguments), Event()]

    monkeypatch.setattr(kafka_input, "Consumer", Consumer)
    with KafkaInput({"bootstrap.servers": broker.bootstrap}, False).opened() as reader:
        for start in range(0, 20, 5):
            assert offsets_of(reader, name, 0, start, start + 5) == list(range(start, start + 5))


def test_kafka_reader_waits_for_a_silent_broker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_input, "_IDLE", 0.2)
    source = KafkaInput({"bootstrap.servers": "127.0.0.1:9"}, False)
    ranges = [OffsetRange("t", n, 0, 5) for n in range(64)]
    done = worker.work([worker.Copying(".")], source, [(0, span) for span in ranges])
    assert [item.range for _, item in done] == ranges
    assert all(item.declined for _, item in done)
