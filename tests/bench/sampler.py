"""Samples what a tree of processes costs while it runs."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

__all__ = ["Sampler"]

_EVERY = 0.25
"""Seconds between two looks at CPU; memory is looked at every fourth time, since it takes longer."""


class Sampler:
    """Looks at a process and all of its descendants while the block lasts.

    ``wait4`` counts only processes that their parents waited for. Spark's Python workers are not among them: the JVM
    exits first. A sample counts them, and misses what a process used after the last look at it.

    Parameters
    ----------
    pid
        The root of the tree.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.peak_mb = 0.0

    @property
    def cpu(self) -> float:
        """CPU seconds, user and system, of all processes that were seen."""
        return sum(self._cpu.values())

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        count = 0
        while True:
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            memory = 0
            for process in tree:
                try:
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
                    if count % 4 == 0:
                        memory += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_mb = max(self.peak_mb, memory / 1_000_000)
            count += 1
            if self._ended.wait(_EVERY):
                return
