"""Strategy ``wal``, second query: applies sealed batches to the sink, in their order, beside the landing of others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from sluice.ranges import OffsetRange
from sluice.wal import Segment

__all__ = ["Applier", "Sealed"]


@dataclass(frozen=True)
class Sealed:
    """A batch that the log holds: what it was planned with, and its segments."""

    batch: int
    ranges: tuple[OffsetRange, ...]
    segments: tuple[Segment, ...]


class Applier:
    """A thread that applies batches one after the other.

    Landing goes on when applying fails, since what is in the log is safe from Kafka's retention; the failure is raised
    at the end. A batch behind a failed one is not applied: the sink takes them in order.

    Parameters
    ----------
    apply
        Takes one batch into the sink.
    failure
        Why nothing can be applied, when that is known from the beginning.
    """

    def __init__(self, apply: Callable[[Sealed], None], failure: BaseException | None = None) -> None:
        self._apply = apply
        self._todo: queue.SimpleQueue[Sealed | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="sluice-apply", daemon=True)
        self._failure = failure
        self.done = 0

    def __enter__(self) -> Applier:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._todo.put(None)
        self._thread.join()

    def put(self, sealed: Sealed) -> None:
        """Hand over a batch; returns at once."""
        self._todo.put(sealed)

    def finish(self) -> None:
        """Wait until everything was applied.

        Raises
        ------
        Exception
            Whatever the first batch died of that could not be applied.
        """
        self._todo.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while (sealed := self._todo.get()) is not None:
            if self._failure is not None:
                continue
            try:
                self._apply(sealed)
                self.done += 1
            except BaseException as error:
                self._failure = error
