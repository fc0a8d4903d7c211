"""Strategy ``hot``: each batch is kept on two executors before anything is done with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.recovery import Recovery
from sluice_spark.engine.logs import logger
from sluice_spark.sources.base import Records
from sluice_spark.sources.held import HeldRecords
from sluice_spark.strategies.base import Held, Replay

__all__ = ["Hot", "executors", "held_twice"]

_LATE = 15.0
"""Seconds that a session's second executor is waited for, once."""

_awaited: set[str] = set()


@dataclass(frozen=True)
class Hot(Replay):
    """Replays, from executors where the second copy survives."""

    recovery: Recovery = Recovery.HOT
    headers: bool = True

    def hold(self, frame: DataFrame, source: Records) -> AbstractContextManager[Held]:
        """Hold the records on two executors; with fewer than two, the shortfall says so."""
        return _held(frame, source)


@contextmanager
def _held(frame: DataFrame, source: Records) -> Iterator[Held]:
    with held_twice(frame) as (held, shortfall):
        yield Held(held, source, shortfall) if shortfall else Held(held, HeldRecords(held, source))


def executors(spark: SparkSession) -> int:
    """Return how many executors there are now: those that answer when each core of the cluster is given a task.

    A cluster's executors register one by one while the session is already usable. So when fewer than two answer for
    the first time in an application they are asked again, for up to 15 s; later answers are taken as they come.

    Notes
    -----
    Executors are told apart by process id and host name, which a tiny job asks of them: public API only, so that it
    works over Spark Connect too. An idle executor always gets one of the tasks, since they are dealt out in turn; one
    whose cores are all busy with another job of this application is not met. A local master runs no job and is one.
    """
    if spark.conf.get("spark.master", "").startswith("local"):
        return 1
    found = _answering(spark)
    application = spark.conf.get("spark.app.id", "")
    if found < 2 and application not in _awaited:
        deadline = time.monotonic() + _LATE
        while found < 2 and time.monotonic() < deadline:
            time.sleep(0.25)
            found = _answering(spark)
    _awaited.add(application)
    return found


@contextmanager
def held_twice(records: DataFrame) -> Iterator[tuple[DataFrame, str | None]]:
    """Keep a batch on two executors for as long as the block lasts.

    The whole frame is read once, by a job of its own that has ended when the block begins. From then on an executor
    that dies takes nothing with it: what it held is read from its twin, and the source is not asked again.

    Parameters
    ----------
    records
        A batch frame, as the source gives it. All its columns are kept: select what is needed before.

    Yields
    ------
    tuple[DataFrame, str or None]
        The frame to work with, and None; or, when there are fewer than two executors, the frame as it came and the
        reason in words. Nothing is kept then: losing an executor costs a second read, as under ``replay``, and the
        caller has to record that the strategy degraded.

    Notes
    -----
    What it does not do: an executor that dies during that first read makes its tasks read again. Of two executors that
    die at once, or of a second one that dies in the same block (what the first held is not copied once more), the
    records are read again. The driver's death ends the run; the next one reads the logged ranges again. That each part
    found a second place is Spark's word: executors only warn in their own logs when not, as they do for a minute after
    one of them died unless ``spark.storage.cachedPeersTtl`` is 0, which :mod:`sluice.launch.submit` sees to. Two
    executors may stand on one machine. What does not fit into memory lies on the executors' disks; all of it is
    released at the end of the block whatever happens.
    """
    count = executors(records.sparkSession)
    if count < 2:
        yield records, f"there {'is one executor' if count == 1 else 'is no executor'}, and a second copy needs two"
        return
    # serialized, which is what the twin is sent anyway
    held = records.persist(StorageLevel.MEMORY_AND_DISK_2)
    try:
        held.count()
        yield held, None
    finally:
        try:
            held.unpersist()
        except Exception as error:  # the block's own error must not be hidden by one that follows from it
            logger.warning("a batch that was held twice could not be released: %s", error)


def _answering(spark: SparkSession) -> int:
    process = F.reflect(F.lit("java.lang.ProcessHandle"), F.lit("current"))
    host = F.try_reflect(F.lit("java.net.InetAddress"), F.lit("getLocalHost"))
    # left to Spark, the range is cut into as many tasks as the cluster has cores
    return len(set(spark.range(4096).select(process, host).collect()))
