"""Reads ranges of a message queue's streams, in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.connections import Connection
from sluice.errors import SluiceError
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import LostError, Message
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.source import connected
from sluice_spark.sources.connection_pool import ConnectionPool
from sluice_spark.sources.inputs import LATEST, RECORDS, UTC, Headers, UnreadableError

__all__ = ["MessagesChunk", "QueueInput", "QueueRanges", "Streams"]


@dataclass(frozen=True)
class MessagesChunk:
    """Some messages of one stream, in the order of their offsets."""

    span: OffsetRange
    messages: Sequence[Message]

    @cached_property
    def offsets(self) -> Any:
        """The offsets, ascending, as a NumPy array."""
        return np.array([m.offset for m in self.messages], np.int64)

    @cached_property
    def times(self) -> Any:
        """When the queue got each message, in milliseconds since 1970."""
        return np.array([min(m.time, LATEST) for m in self.messages], np.int64)

    def values(self) -> list[bytes | None]:
        """Return the value of each message."""
        return [m.value for m in self.messages]

    def keys(self) -> list[bytes | None]:
        """Return the key of each message."""
        return [m.key for m in self.messages]

    def headers(self) -> list[Headers]:
        """Return the headers of each message, in their order."""
        return [m.headers for m in self.messages]

    def chosen(self, numbers: Any) -> MessagesChunk:
        """Return the messages with these numbers in the chunk, which ascend."""
        return MessagesChunk(self.span, [self.messages[n] for n in numbers])

    def records(self) -> pa.Table:
        """Return the messages as records."""
        count = len(self.messages)
        kind = RECORDS.field("headers").type
        headers = [[{"key": k, "value": v} for k, v in m.headers] if m.headers else None for m in self.messages]
        return pa.Table.from_arrays(
            [
                pa.array(self.keys(), pa.binary()),
                pa.array(self.values(), pa.binary()),
                pa.array(headers, kind) if any(headers) else pa.nulls(count, kind),
                pa.repeat(pa.scalar(self.span.topic, pa.string()), count),
                pa.repeat(pa.scalar(self.span.partition, pa.int32()), count),
                pa.array(self.offsets, pa.int64()),
                pa.array(self.times * 1000, pa.int64()).cast(UTC),
                pa.repeat(pa.scalar(1, pa.int32()), count),
            ],
            schema=RECORDS,
        )


@dataclass(frozen=True)
class QueueInput:
    """Streams of a queue, and what helps to find ranges in them.

    Parameters
    ----------
    connection
        It holds secrets.
    guide
        What :meth:`Queue.guide <sluice.sources.queue.base.Queue.guide>` returned for all ranges that will be read, or
        why they cannot be.
    """

    config: QueueSource
    connection: Connection
    guide: Any = field(repr=False)

    def opened(self) -> QueueRanges:
        """Connect to the queue."""
        return QueueRanges(self)


class QueueRanges:
    """Reads one range after another. In a Python worker of Spark, the connection is kept for its next task."""

    def __init__(self, source: QueueInput) -> None:
        self._source = source
        self._pooled = ConnectionPool(source.config, source.connection)
        self._sound = True

    def __enter__(self) -> QueueRanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pooled.release(sound=self._sound and kind is None)

    def read(self, span: OffsetRange) -> Iterator[MessagesChunk]:
        """Yield the messages of a range.

        Raises
        ------
        UnreadableError
            If not all of them could be read. Chunks that were yielded before may be of others.
        """
        guide, at = self._source.guide, span.start
        if isinstance(guide, UnreadableError):
            raise guide
        sound, self._sound = self._sound, False  # also if this is given up halfway
        while True:
            try:
                for messages in self._pooled.queue.read(span, guide):
                    if messages[0].offset < at or messages[-1].offset >= span.end:
                        raise UnreadableError("offsets do not ascend")
                    at = messages[-1].offset + 1
                    yield MessagesChunk(span, messages)
                self._sound = sound
                return
            except (LostError, SluiceError) as error:
                if at > span.start or not self._pooled.used:
                    raise UnreadableError(str(error)) from error
            self._renew()  # the server may have closed what an earlier task left

    def _renew(self) -> None:
        try:
            self._pooled.renew()
        except SluiceError as error:
            raise UnreadableError(str(error)) from error


@dataclass
class Streams:
    """Where the ranges of a pipeline's streams can be read; it may hold secrets.

    Parameters
    ----------
    connection, config
        As those of :class:`QueueInput`.
    """

    config: QueueSource
    connection: Connection
    _queue: Any = field(default=None, init=False, repr=False)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_queue": None}

    def input(self, ranges: Sequence[OffsetRange]) -> QueueInput:
        """Return what workers need to read these ranges. If the queue does not have them, reading fails."""
        if self._queue is None:  # kept, because it knows some messages by their offsets then
            self._queue = connected(self.config, self.connection)
        guide: Any
        try:
            guide = self._queue.guide(ranges)
        except (LostError, SluiceError) as error:
            guide = UnreadableError(str(error))
        return QueueInput(self.config, self.connection, guide)
