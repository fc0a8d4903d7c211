"""Measures the wall time of a run's phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]

__all__ = ["Stopwatch"]


class Stopwatch:
    """Adds up wall seconds per phase. ``process`` is the time before this object was created: JVM and imports."""

    def __init__(self) -> None:
        parent = psutil.Process().parent()
        started = parent.create_time() if parent and parent.name() == "java" else psutil.Process().create_time()
        self.seconds: dict[str, float] = {"process": time.time() - started}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time within the block to a phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
