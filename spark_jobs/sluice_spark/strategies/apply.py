"""Strategy ``wal``, second step: applies sealed batches to the sink in order, while later ones are landed."""

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
    """A batch that is sealed in the write-ahead log: its planned ranges and its segments."""

    batch: int
    ranges: tuple[OffsetRange, ...]
    segments: tuple[Segment, ...]


class Applier:
    """A thread that applies sealed batches one after another.

    If a batch fails, landing continues, because records in the log are safe from Kafka's retention; the failure is
    raised at the end. The batches after a failed one are not applied, because the sink takes batches in order.

    Parameters
    ----------
    apply
        Applies one batch to the sink.
    failure
        Why nothing can be applied, if that is known from the start.
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
        """Queue a batch; return at once."""
        self._todo.put(sealed)

    def finish(self) -> None:
        """Wait until all queued batches are applied.

        Raises
        ------
        Exception
            The failure of the first batch that could not be applied, or the one that was known from the start.
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
