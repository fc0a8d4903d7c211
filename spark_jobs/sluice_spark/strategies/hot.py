"""Strategy ``hot``: keeps each batch on two executors before its first use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.recovery import Recovery
from sluice_spark.engine.logs import logger
from sluice_spark.sources.base import Records
from sluice_spark.sources.held_records import HeldRecords, HeldWhenRead
from sluice_spark.strategies.base import Held, Replay

__all__ = ["Hot", "executors", "held_twice"]

_LATE = 15.0
"""Seconds to wait for the second executor, once per application."""

_awaited: set[str] = set()


@dataclass(frozen=True)
class Hot(Replay):
    """Works as ``replay``, but reads records again from the executors that hold them, not from the source."""

    recovery: Recovery = Recovery.HOT
    headers: bool = True

    def hold(
        self, frame: DataFrame, source: Records, tell: Callable[[str], None], *, later: bool
    ) -> AbstractContextManager[Held]:
        """Hold the records on two executors; if there are fewer than two, tell why not.

        What the Arrow path takes needs no second copy: the rows of a worker are files of the sink's storage, which an
        executor does not take with it.
        """
        return _held_later(frame.sparkSession, source, tell) if later else _held(frame, source, tell)

    @contextmanager
    def hold_when_read(self, spark: SparkSession, source: Records, tell: Callable[[str], None]) -> Iterator[Records]:
        """Hold what Spark reads on two executors; if there are fewer than two, tell why not."""
        with _held_later(spark, source, tell) as held:
            yield held.source

    def hold_emitted(
        self, emitted: DataFrame, source: Records, tell: Callable[[str], None]
    ) -> AbstractContextManager[Held]:
        """Hold both on two executors; if there are fewer than two, tell why not.

        The pass by which Spark makes the state cannot be held: it is the query's own. So losing an executor before the
        state is made costs a second read of its part. The state itself is in the checkpoint.
        """
        return _held_as_emitted(emitted, source, tell)


@contextmanager
def _held(frame: DataFrame, source: Records, tell: Callable[[str], None]) -> Iterator[Held]:
    with held_twice(frame) as (held, shortfall):
        if shortfall:
            tell(shortfall)
        yield Held(held, source if shortfall else HeldRecords(held, source))


@contextmanager
def _held_as_emitted(frame: DataFrame, source: Records, tell: Callable[[str], None]) -> Iterator[Held]:
    with held_twice(frame) as (held, shortfall):
        if shortfall:
            tell(shortfall)
            yield Held(held, source)
            return
        with _held_later(frame.sparkSession, source, tell) as records:
            yield Held(held, records.source)


@contextmanager
def _held_later(spark: SparkSession, source: Records, tell: Callable[[str], None]) -> Iterator[Held]:
    if _local(spark):
        tell(_too_few(1))
    with ExitStack() as stack:

        def hold(frame: DataFrame) -> DataFrame:
            held, shortfall = stack.enter_context(held_twice(frame))
            if shortfall:
                tell(shortfall)
            return held

        yield Held(None, HeldWhenRead(source, hold))


def _local(spark: SparkSession) -> bool:
    return str(spark.conf.get("spark.master", "")).startswith("local")


def _too_few(count: int) -> str:
    return f"there {'is one executor' if count == 1 else 'is no executor'}, and a second copy needs two"


def executors(spark: SparkSession) -> int:
    """Return how many executors answer a small job that has a task for each core of the cluster.

    Executors register one by one while the session is already usable. If the first call in an application finds fewer
    than two, it asks again for up to 15 s. Later calls ask once.

    Notes
    -----
    The job returns each executor's process id and host name. It needs only the public API, and so also works over
    Spark Connect. An idle executor always gets a task, because Spark assigns tasks in turn. An executor whose cores are
    all busy with another job of this application is not counted. A local master counts as one executor, without a job.
    """
    if _local(spark):
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
    """Keep a batch on two executors until the block ends.

    A separate job reads the whole frame once before the block begins. If an executor is lost after that, its part is
    read from the second copy, and the source is not read again.

    Parameters
    ----------
    records
        The batch as the source returns it. All its columns are kept, so select the needed ones first.

    Yields
    ------
    tuple[DataFrame, str or None]
        The frame to work with, and None. If there are fewer than two executors: the frame unchanged, and the reason in
        words. Nothing is kept then: losing an executor costs a second read, as under ``replay``, and the caller has to
        record that the strategy degraded.

    Notes
    -----
    The source is read again if an executor is lost during the first read, if two executors are lost at once, or if a
    second one is lost in the same block (the first one's copies are not made again). If the driver dies, the run ends,
    and the next run reads the logged ranges again.

    Spark does not guarantee the second copy: an executor that finds no peer only warns in its own log. After an
    executor was lost, that can happen for a minute unless ``spark.storage.cachedPeersTtl`` is 0, which
    :mod:`sluice.launch.submit` sets. Both executors may be on one machine. What does not fit into memory is kept on the
    executors' disks. Everything is released when the block ends, also after an error.
    """
    count = executors(records.sparkSession)
    if count < 2:
        yield records, _too_few(count)
        return
    # serialized, which is how blocks are sent to the second executor anyway
    held = records.persist(StorageLevel.MEMORY_AND_DISK_2)
    try:
        held.count()
        yield held, None
    finally:
        try:
            held.unpersist()
        except Exception as error:  # it must not hide the block's own error
            logger.warning("the copies of a batch could not be released: %s", error)


def _answering(spark: SparkSession) -> int:
    process = F.reflect(F.lit("java.lang.ProcessHandle"), F.lit("current"))
    host = F.try_reflect(F.lit("java.net.InetAddress"), F.lit("getLocalHost"))
    # by default, Spark splits a range into as many tasks as the cluster has cores
    return len(set(spark.range(4096).select(process, host).collect()))
