"""Reads ranges of Kafka's partitions with librdkafka, in chunks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluice.ranges import OffsetRange
from sluice_spark.sources.inputs import LATEST, RECORDS, UTC, Headers, SilentError, UnreadableError

__all__ = ["KafkaChunk", "KafkaInput", "KafkaRanges"]

_RECORDS = 10_000
_BYTES = 32 << 20
"""A chunk is smaller than about twice this."""
_TUNED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "check.crcs": True,
    # If fewer are queued, more are fetched: a worker decodes these in a tenth of a second or two. What is fetched
    # beyond a share's end is thrown away, and what is queued takes memory. Each time that enough are queued, librdkafka
    # would wait for a second, but for fetch.queue.backoff.ms.
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.message.max.bytes": 4 << 20,
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 100,
    "allow.auto.create.topics": False,
    "log.connection.close": False,
}
_IDLE = 10.0
"""Seconds without a record after which a range is given back."""
_TICK = 0.05
"""Seconds that are waited for records. Meanwhile librdkafka goes on fetching, so this bounds how many bytes come."""
_OF_PARTITIONS = frozenset(
    (
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._FATAL,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError._UNSUPPORTED_FEATURE,
    )
)
"""Errors after which no more records of the partition come. librdkafka reports others, too, and goes on by itself."""

_log = logging.getLogger("sluice.librdkafka")
_log.addHandler(logging.NullHandler())
_log.propagate = False


@dataclass(frozen=True)
class KafkaChunk:
    """Some records of one partition, in the order of their offsets."""

    messages: Sequence[Any]
    offsets: Any
    """Ascending, as a NumPy array."""
    times: Any
    """Record times in milliseconds since 1970, at most :data:`LATEST`; negative where the record has none."""
    kinds: Any
    """The kinds of these times as librdkafka has them; 0 means none."""

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        return list(map(Message.value, self.messages))

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return list(map(Message.key, self.messages))

    def headers(self) -> list[Headers]:
        """Return the headers of each record, in their order."""
        headers: list[Any] = list(map(Message.headers, self.messages))
        return headers

    def chosen(self, numbers: Any) -> KafkaChunk:
        """Return the records with these numbers in the chunk, which ascend."""
        messages = [self.messages[n] for n in numbers]
        return KafkaChunk(messages, self.offsets[numbers], self.times[numbers], self.kinds[numbers])

    def records(self) -> pa.Table:
        """Return the records as they are."""
        first, count = self.messages[0], len(self.messages)
        headers, kind = self.headers(), RECORDS.field("headers").type
        as_dicts = (
            [None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers] if any(headers) else []
        )
        times = np.where(self.times < 0, -1, self.times)
        return pa.Table.from_arrays(
            [
                pa.array(self.keys(), pa.binary()),
                pa.array(self.values(), pa.binary()),
                pa.array(as_dicts, kind) if as_dicts else pa.nulls(count, kind),
                pa.repeat(pa.scalar(first.topic(), pa.string()), count),
                pa.repeat(pa.scalar(first.partition(), pa.int32()), count),
                pa.array(self.offsets, pa.int64()),
                pa.array(times * 1000, pa.int64()).cast(UTC),
                pa.array(self.kinds - 1, pa.int32()),
            ],
            schema=RECORDS,
        )


@dataclass(frozen=True)
class KafkaInput:
    """A cluster whose partitions are read by ranges.

    Parameters
    ----------
    settings
        librdkafka's; they hold secrets.
    committed
        Whether records of aborted transactions are left out (Kafka's isolation level).
    """

    settings: Mapping[str, str] = field(repr=False)
    committed: bool

    def opened(self) -> KafkaRanges:
        """Open a consumer. It joins no group and commits nothing."""
        return KafkaRanges(self)


class KafkaRanges:
    """A consumer that reads one range after another."""

    def __init__(self, source: KafkaInput) -> None:
        level = "read_committed" if source.committed else "read_uncommitted"
        self._settings = {**source.settings, **_TUNED, "group.id": "sluice-arrow", "isolation.level": level}
        self._consumer = Consumer(self._settings, logger=_log)
        self._seen: set[tuple[str, int]] = set()
        self._at: tuple[str, int, int] | None = None
        self._rest: list[Any] = []

    def __enter__(self) -> KafkaRanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def read(self, span: OffsetRange) -> Iterator[KafkaChunk]:
        """Yield the records of a range. One that begins where the last one ended goes on with what was fetched ahead.

        Raises
        ------
        UnreadableError
            If it cannot be read to its end. Chunks that were yielded before are right.
        """
        rest = self._begin(span)
        held: list[Any] = []
        at, size, last = span.start, 0, time.monotonic()
        room = _RECORDS
        while at < span.end:
            try:
                came: list[Any] = rest or self._consumer.consume(min(room - len(held), span.end - at), _TICK)
            except KafkaException as error:
                raise UnreadableError(str(error)) from error
            rest, self._rest = [], []
            events = [message for message in came if message.error() is not None]
            if events or (came and came[-1].offset() >= span.end):
                self._rest = [m for m in came if _belongs_behind(m, span)]
            if events:
                came = [message for message in came if message.error() is None]
            if came:
                if any((m.topic(), m.partition()) != (span.topic, span.partition) for m in (came[0], came[-1])):
                    # what another range left; beyond this one's end it would be taken for a gap
                    raise UnreadableError("records of another partition came")
                if came[0].offset() < at:
                    raise UnreadableError(f"offset {came[0].offset()} came after {at - 1}")
                at = came[-1].offset() + 1
                while came and came[-1].offset() >= span.end:
                    came.pop()
                held += came
                size += sum(map(len, came))
                if held:
                    room = max(1, min(_RECORDS, _BYTES * len(held) // max(1, size)))
                last = time.monotonic()
            if events and _at_end(events, span):
                at = span.end
            if held and (at >= span.end or len(held) >= room):
                yield _chunk(held, span)
                held, size, last = [], 0, time.monotonic()
            if time.monotonic() - last > _IDLE:
                raise SilentError(f"no record came for {_IDLE:.0f} s")
        if held:
            yield _chunk(held, span)
        self._at = (span.topic, span.partition, span.end)

    def _begin(self, span: OffsetRange) -> list[Any]:
        """Go to the start of a range, and return what came already: records behind the last range, and its end."""
        here, there = (span.topic, span.partition), self._at
        self._at = None  # until the range was read to its end
        if there == (*here, span.start):
            # an end that it met before this range's may have moved since: it is asked for again
            return [m for m in self._rest if m.error() is None or m.offset() >= span.end]
        if here in self._seen:
            # what this consumer fetched ahead, and the end that it met, must not be taken for this range's
            self._consumer.close()
            self._consumer = Consumer(self._settings, logger=_log)
            self._seen.clear()
        self._seen.add(here)
        self._consumer.assign([TopicPartition(span.topic, span.partition, span.start)])
        return []


def _belongs_behind(message: Any, span: OffsetRange) -> bool:
    """Return whether a message matters to the range behind: a record beyond this one's end, or the partition's end."""
    error = message.error()
    if error is None:
        return bool(message.offset() >= span.end)
    return bool(error.code() == KafkaError._PARTITION_EOF)


def _at_end(events: Sequence[Any], span: OffsetRange) -> bool:
    """Return whether the partition has no more records before the range's end.

    Raises
    ------
    UnreadableError
        If it ends before, or if no more records will come.
    """
    ended = False
    for event in events:
        error = event.error()
        if error.code() == KafkaError._PARTITION_EOF:
            if (event.topic(), event.partition()) != (span.topic, span.partition):
                continue
            if event.offset() < span.end:
                raise UnreadableError(f"the partition ends at {event.offset()}")
            ended = True
        elif error.code() in _OF_PARTITIONS or error.fatal():
            raise UnreadableError(error.str())
    return ended


def _chunk(messages: list[Any], span: OffsetRange) -> KafkaChunk:
    offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
    if offsets[0] < span.start or (np.diff(offsets) <= 0).any():
        raise UnreadableError("offsets do not ascend")
    if set(map(Message.partition, messages)) != {span.partition} or set(map(Message.topic, messages)) != {span.topic}:
        raise UnreadableError("records of another partition came")
    pairs = chain.from_iterable(map(Message.timestamp, messages))
    kinds, times = np.fromiter(pairs, np.int64, 2 * len(messages)).reshape(-1, 2).T
    times = np.where(kinds == 0, -1, np.minimum(times, LATEST))
    return KafkaChunk(messages, offsets, times, kinds.astype(np.int32))
