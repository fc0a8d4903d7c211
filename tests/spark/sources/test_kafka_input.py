"""Ranges are read in chunks of bounded size, however large the records are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from sluice.local import kafka
from sluice.local.kafka import Topics
from sluice.ranges import OffsetRange
from sluice_spark.sources import kafka_input
from sluice_spark.sources.inputs import UnreadableError
from sluice_spark.sources.kafka_input import KafkaInput

MEGABYTE = 1 << 20
LARGE = b"x" * MEGABYTE
END = KafkaError(KafkaError._PARTITION_EOF)
"""What an event says at the end of a partition."""


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


def test_a_chunk_of_large_records_has_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_input, "Consumer", Broker)
    with KafkaInput({}, False).opened() as ranges:
        chunks = list(ranges.read(OffsetRange("t", 0, 0, 500)))
    assert [n for chunk in chunks for n in chunk.offsets.tolist()] == list(range(500))
    assert max(len(chunk.messages) for chunk in chunks) * MEGABYTE <= kafka_input._BYTES


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


def test_the_end_of_another_partition_is_not_taken_for_the_end_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_input, "Consumer", late(record(1000, partition=7, error=END), 0))
    with KafkaInput({}, False).opened() as ranges:
        found = [n for chunk in ranges.read(OffsetRange("t", 0, 0, 10)) for n in chunk.offsets.tolist()]
    assert found == list(range(10))


@pytest.mark.parametrize("offset", [0, 9, 1000])
def test_a_record_of_another_partition_is_not_taken_for_one_of_this(
    monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    monkeypatch.setattr(kafka_input, "Consumer", late(record(offset, partition=7), 1))
    with KafkaInput({}, False).opened() as ranges, pytest.raises(UnreadableError, match="another partition"):
        list(ranges.read(OffsetRange("t", 0, 0, 10)))


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([*map(record, (0, 1, 2, 6, 7, 8, 9, 10, 11))], [[0, 1, 2], [6], [7, 8, 9]]),
        ([*map(record, (0, 1, 2)), record(12, error=END)], [[0, 1, 2], [], []]),
        ([*map(record, (0, 8)), record(12, error=END)], [[0], [], [8]]),
    ],
    ids=["a gap", "the end of the partition", "both"],
)
def test_what_came_beyond_a_range_is_of_the_next_ones(
    monkeypatch: pytest.MonkeyPatch, came: list[Message], expected: list[list[int]]
) -> None:
    left = list(came)

    class Given(Broker):
        def consume(self, most: int, _: float) -> list[Message]:
            found = left[:most]
            del left[:most]
            return found

    monkeypatch.setattr(kafka_input, "Consumer", Given)
    with KafkaInput({}, False).opened() as ranges:
        found = [
            [n for chunk in ranges.read(OffsetRange("t", 0, start, end)) for n in chunk.offsets.tolist()]
            for start, end in ((0, 4), (4, 7), (7, 10))
        ]
    assert found == expected


@pytest.mark.kafka
def test_one_reader_reads_ranges_in_any_order(broker: kafka.Broker, topics: Topics, topic: Callable[..., str]) -> None:
    name = topic(3, retention_ms=-1)
    topics.produce(name, [(n % 3, None, b"%d" % n) for n in range(600)])
    chance = random.Random(3)
    ranges = []
    for _ in range(40):
        start = chance.randrange(200)
        ranges.append(
            OffsetRange(name, chance.randrange(3), start, chance.choice([start + 1, 200, min(200, start + 50)]))
        )
    with KafkaInput({"bootstrap.servers": broker.bootstrap}, False).opened() as reading:
        for span in ranges:
            found = [(m.partition(), m.offset()) for chunk in reading.read(span) for m in chunk.messages]
            assert found == [(span.partition, n) for n in range(span.start, span.end)]
