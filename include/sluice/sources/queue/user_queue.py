"""A message queue of the user's own: what its class raises becomes an error that says what it was doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError, SourceUnreachableError, described
from sluice.kinds import imported, not_leaving
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import LostError, Message, StreamState

__all__ = ["UserQueue"]

_STATE = "nothing was read or written now; what earlier runs wrote is in the sink"
_METHODS = ("state", "guide", "read", "first_at", "done", "close")


class UserQueue:
    """A connection by a class of the user's; see :class:`~sluice.sources.queue.base.Queue`.

    Parameters
    ----------
    kind
        ``package.module:Class``.
    owner
        The pipeline's name and id; None where only ranges are read.

    Raises
    ------
    ConfigError
        If the class cannot be imported, or lacks a method.
    SourceUnreachableError
        If it fails: it may connect when it is made.
    """

    def __init__(self, kind: str, connection: Connection, owner: tuple[str, str] | None) -> None:
        self._kind = kind
        made = imported(kind)
        with self._told("the connection"):
            self._queue: Any = made(connection, owner)
        lacking = [name for name in _METHODS if not callable(getattr(self._queue, name, None))]
        if lacking:
            raise ConfigError(
                f"source.queue.kind: {kind} has no {', '.join(lacking)}",
                state=_STATE,
                next_step="give it the methods of sluice.sources.queue.base.Queue",
            )

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            with not_leaving():
                yield
        except (SluiceError, LostError):
            raise
        except Exception as error:  # it runs the user's code
            raise SourceUnreachableError(
                f"{what} of {self._kind} failed: {described(error)}",
                state=_STATE,
                next_step="see whether the queue answers, or correct the class; the next run catches up",
            ) from error

    def state(self, stream: str) -> StreamState:
        """Return the state of a stream.

        Raises
        ------
        SluiceError
            If the class fails.
        """
        with self._told(f"state({stream!r})"):
            found: StreamState = self._queue.state(stream)
            return StreamState(str(found.id), int(found.start), int(found.end))

    def guide(self, ranges: Sequence[OffsetRange]) -> Any:
        """Return what helps to read ranges."""
        with self._told("guide"):
            return self._queue.guide(ranges)

    def read(self, span: OffsetRange, guide: Any) -> Iterator[list[Message]]:
        """Yield the messages of a range; what the class raises means that they could not be read."""
        with self._told(f"read({span})"):
            for found in self._queue.read(span, guide):
                if found:
                    yield [Message(*message) for message in found]

    def first_at(self, stream: str, milliseconds: int) -> int | None:
        """Return the first offset at or after a time."""
        with self._told(f"first_at({stream!r})"):
            found = self._queue.first_at(stream, milliseconds)
            return None if found is None else int(found)

    def done(self, stream: str, position: int) -> None:
        """Tell the queue how far its messages were taken."""
        with self._told(f"done({stream!r})"):
            self._queue.done(stream, position)

    def close(self) -> None:
        """Close the connection."""
        self._queue.close()
