"""Reads batches before Spark has planned them, while the driver commits those before."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark.sql import SparkSession

from sluice.ranges import OffsetRange
from sluice_spark.arrow.shares import cause_of
from sluice_spark.engine.logs import logger

__all__ = ["Foreseen", "ReadAhead"]

Foreseen = tuple[str, tuple[OffsetRange, ...]]
"""The name of a batch that is to come, and the ranges that it will probably have."""

T = TypeVar("T")

_FIRST, _MOST = 200_000, 2_000_000
"""Offsets that are read ahead together: few at first, because the next batch waits for them, and at the end, because
nothing is read any more while the last ones are committed."""
_LONG = 15.0
"""If it took so many seconds, not more are read together the next time: none is committed before the last is read."""
_BATCHES = 64
"""Maximum number of batches that are read ahead together: each has folders of its own."""
_MISSES = 2
"""If so many batches had other ranges than were foreseen, no more are read ahead."""


@dataclass
class _Window(Generic[T]):
    """Batches that are read in one job."""

    batches: dict[str, tuple[OffsetRange, ...]]
    results: Future[dict[str, T]] = field(default_factory=Future)


@dataclass
class ReadAhead(Generic[T]):
    """At most two windows of batches: one that is being used, and one that is read meanwhile.

    Nothing depends on what was foreseen. A batch is taken from here only if Spark planned exactly its ranges; otherwise
    it is dropped, and the caller reads the batch as it would without this class.

    Parameters
    ----------
    read
        Reads batches in one job, in a thread of its own; it returns a result for each name, and leaves nothing if it
        raises.
    drop
        Removes a result that is not used.
    """

    spark: SparkSession
    read: Callable[[Sequence[Foreseen]], dict[str, T]]
    drop: Callable[[T], None]
    _windows: list[_Window[T]] = field(default_factory=list)
    _tag: str = field(default_factory=lambda: f"sluice-read-ahead-{uuid.uuid4().hex}")
    _size: int = _FIRST
    _seconds: float = _LONG
    _misses: int = 0

    def take(self, name: str, ranges: Sequence[OffsetRange]) -> T | None:
        """Return a batch that was read ahead, waiting for it if it is being read; None if it was not.

        What was read ahead for earlier batches is dropped: batches come in order.
        """
        at = next((n for n, window in enumerate(self._windows) if name in window.batches), None)
        if at is None:
            return None
        for earlier in self._windows[:at]:
            self._forget(earlier)
        window = self._windows[0]
        try:
            results = window.results.result()
        except Exception as error:
            # whatever it is, it is met again where the batch is read, and knows its name there
            logger.info("batches are not read ahead from here on: %s", cause_of(error))
            self._misses = _MISSES
            self.close()
            return None
        while True:
            number, planned = next(iter(window.batches.items()))
            del window.batches[number]
            found = results.pop(number, None)
            if number == name and planned == tuple(ranges):
                break
            if found is not None:
                self.drop(found)
            if number == name:
                self._misses += 1
                self.close()
                return None
        if not window.batches:
            self._windows.remove(window)
        return found

    def go_on(self, coming: Iterable[Foreseen]) -> None:
        """Begin to read the next batches, unless enough are read already; return at once.

        Parameters
        ----------
        coming
            The batches after the one that is processed now, in order.
        """
        if self._misses >= _MISSES or len(self._windows) > 1 or (self._windows and not self._windows[0].results.done()):
            return
        if self._seconds < _LONG:  # of the window before
            self._size = min(_MOST, 2 * self._size)
        chosen = self._chosen(coming)
        if not chosen:
            return
        window: _Window[T] = _Window(chosen)
        self._windows.append(window)
        batches = list(chosen.items())

        def run() -> None:
            try:
                self.spark.addTag(self._tag)
                began = time.monotonic()
                found = self.read(batches)
                self._seconds = time.monotonic() - began
                window.results.set_result(found)
            except Exception as error:
                window.results.set_exception(error)
            except BaseException as error:  # such as a transform that calls exit: no caller may wait for ever
                window.results.set_exception(RuntimeError(f"{type(error).__name__} ended the reading"))

        threading.Thread(target=run, name="sluice-read-ahead", daemon=True).start()

    def _chosen(self, coming: Iterable[Foreseen]) -> dict[str, tuple[OffsetRange, ...]]:
        """Return the batches that are read next: one, or more of few offsets, or up to half of what is left."""
        known = {name for window in self._windows for name in window.batches}
        left: list[tuple[str, tuple[OffsetRange, ...], int]] = []
        total = 0
        for name, ranges in coming:
            if name not in known:
                left.append((name, ranges, total := total + sum(map(len, ranges))))
                if total >= 2 * self._size or len(left) == 2 * _BATCHES:
                    break
        most = max(_FIRST, min(self._size, total // 2))
        return {name: ranges for n, (name, ranges, upto) in enumerate(left[:_BATCHES]) if n == 0 or upto <= most}

    def close(self) -> None:
        """Drop all that was read ahead, and end what is being read."""
        if any(not window.results.done() for window in self._windows):
            with suppress(Exception):  # it ends by itself, too
                self.spark.interruptTag(self._tag)
        while self._windows:
            self._forget(self._windows[0])

    def _forget(self, window: _Window[T]) -> None:
        self._windows.remove(window)
        with suppress(Exception):  # it has left nothing then
            for found in window.results.result().values():
                self.drop(found)
