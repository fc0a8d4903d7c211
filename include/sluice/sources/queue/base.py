"""What a message queue has to be able to do so that its messages have offsets, and can be read again by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from sluice.ranges import OffsetRange

__all__ = ["LostError", "Message", "Queue", "StreamState"]


class LostError(Exception):
    """Messages of a range cannot be read, or not by the offsets that they had; the text says why."""


class Message(NamedTuple):
    """One message.

    Attributes
    ----------
    offset
        Its number in the stream, the same whenever it is read.
    time
        When the queue got it, in milliseconds since 1970 (UTC).
    """

    offset: int
    time: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True)
class StreamState:
    """A stream now.

    Attributes
    ----------
    id
        What tells it from another stream of the same name, whose offsets are other messages.
    start, end
        The offset of its first message, and the one after its last message.
    last
        The id or the time of its last message as a number, if the queue can look for it later.
    """

    id: str
    start: int
    end: int
    last: int | None = None


class Queue(Protocol):
    """A connection to a queue. It is opened in the driver and in each worker, and holds secrets."""

    def state(self, stream: str) -> StreamState:
        """Return the state of a stream.

        Raises
        ------
        SluiceError
            By type, if it is unknown.
        """

    def guide(self, ranges: Sequence[OffsetRange]) -> Any:
        """Return what helps :meth:`read` to find these ranges. It can be pickled.

        Raises
        ------
        LostError
            If they cannot be read.
        """

    def read(self, span: OffsetRange, guide: Any) -> Iterator[list[Message]]:
        """Yield the messages of a range, in order. When it has ended, the connection may read others.

        Raises
        ------
        LostError
            If not all of them could be read; those that were yielded before may be others.
        """

    def first_at(self, stream: str, milliseconds: int) -> int | None:
        """Return the first offset of a message that came at or after a time; None if there is none."""

    def done(self, stream: str, position: int) -> None:
        """Tell the queue that the messages before a position are in the sink or in the log."""

    def close(self) -> None:
        """Close the connection."""
