"""Says how far Spark's tasks are, while a step takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession

from sluice.text import length
from sluice_spark.engine.logs import logger

__all__ = ["in_words", "watched"]

_EVERY, _LOOK = 10.0, 1.0
"""Seconds between two lines, and between two looks at the tasks."""


@contextmanager
def watched(spark: SparkSession, what: str) -> Iterator[None]:
    """Log every ten seconds how many tasks of the present stage are done, and about how long the others take.

    Parameters
    ----------
    what
        What the lines begin with, such as ``batch 3``.
    """
    ended = threading.Event()
    arguments = (spark.sparkContext.statusTracker(), what, ended)
    thread = threading.Thread(target=_tell, args=arguments, name="sluice-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


def _tell(tracker: Any, what: str, ended: threading.Event) -> None:
    known, since = frozenset[int](), time.monotonic()
    last = since
    while not ended.wait(_LOOK):
        with suppress(Exception):  # a line less is better than a run less
            found = {n: stage for n in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(n)) is not None}
            now = time.monotonic()
            if frozenset(found) != known:
                known, since = frozenset(found), now
            if found and now - last >= _EVERY:
                last = now
                done, of = (sum(getattr(s, k) for s in found.values()) for k in ("numCompletedTasks", "numTasks"))
                logger.info("%s: %s", what, in_words(done, of, now - since))


def in_words(done: int, of: int, seconds: float) -> str:
    """Return how far so many tasks are after so many seconds."""
    left = f", about {length(max(1, seconds / done * (of - done)))} to go" if done else ""
    return f"{done:,} of {of:,} tasks are done ({done / of:.0%}){left}"
