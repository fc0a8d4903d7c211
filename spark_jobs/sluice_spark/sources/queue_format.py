"""``spark.readStream.format("sluice_queue")``: streams of a message queue in Spark, without anything else of Sluice."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sluice.connections import find
from sluice.errors import ConfigError, OffsetsGoneError, TopicRecreatedError
from sluice.ranges import OffsetRange, describe
from sluice.sources.queue.base import Queue, StreamState
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.source import connected
from sluice_spark.sources.base import RECORD_SCHEMA
from sluice_spark.sources.queue_input import Streams
from sluice_spark.sources.range_source import Plan, Share, batch_end

__all__ = ["QueueFormat"]

logger = logging.getLogger(__name__)

_STATE = "the position of the query is where it was"
_NAME = re.compile(r"^[A-Za-z0-9_.-]{1,100}$")


class QueueFormat(DataSource):
    """Messages of a queue as a stream or a frame, with the columns of Spark's Kafka source and ``headers``.

    ``spark.dataSource.register(QueueFormat)`` makes it known to a session. Its options:

    ``connection``
        The id of a connection. The driver's environment has it, in ``AIRFLOW_CONN_<ID>``: no option has a secret.
    ``kind``
        ``redis_streams``, ``nats_jetstream``, or a class of yours, as ``source.queue.kind`` of a pipeline file.
    ``streams``
        The names of the streams, with commas between them. Each has one partition, 0.
    ``name``
        The name of the query: one for each checkpoint. Redis keeps a consumer group for it.
    ``field``
        As ``source.queue.field`` of a pipeline file.
    ``maxRecordsPerTrigger``
        The most records of a batch; by default all that there are.
    ``minPartitions``
        The smallest number of tasks of a batch.
    ``failOnDataLoss``
        With ``false``, what the queue removed before it was read is left out, and the driver's log has the ranges. By
        default the query fails.

    Notes
    -----
    A query begins with the first message that the queue has. Its position is in its checkpoint and nowhere else: no
    message is acknowledged, and none is removed. A batch that is repeated has the same messages again, so a sink that
    knows a batch by its number has each message once.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sluice_queue"

    def schema(self) -> StructType:
        """Return the columns."""
        return RECORD_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads all messages that are there now."""
        return _Frame(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads batch after batch."""
        return _Stream(self.options)


class _Streams:
    """The streams that are asked for. It can be pickled, without its connection."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if not _NAME.match(options.get("name", "")):
            _refuse("name", options, "name the query, one name for each checkpoint, with letters, digits and _ . -")
        known = {k: options[k] for k in ("connection", "kind", "field") if k in options}
        names = [name.strip() for name in options.get("streams", "").split(",") if name.strip()]
        self.name = options["name"]
        self.config = QueueSource.model_validate({**known, "streams": names})
        self.connection = find(self.config.connection)
        self.most, tasks = _whole(options, "maxRecordsPerTrigger"), _whole(options, "minPartitions")
        strict = options.get("failOnDataLoss", "true").lower()
        if strict not in ("true", "false"):
            _refuse("failOnDataLoss", options, "write true or false")
        self.strict = strict == "true"
        self.plan = Plan("sluice_queue", Streams(self.config, self.connection), os.cpu_count() or 1, max(tasks, 1))

    def __getstate__(self) -> Mapping[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "queue"}

    @cached_property
    def queue(self) -> Queue:
        return connected(self.config, self.connection, (self.name, f"spark.{self.name}"))

    def states(self) -> dict[str, StreamState]:
        return {stream: self.queue.state(stream) for stream in self.config.streams}

    def shares(self, ranges: Sequence[OffsetRange]) -> Sequence[Share]:
        return self.plan.shares([r for r in ranges if r])

    def there(self, ranges: Sequence[OffsetRange], now: Mapping[str, StreamState]) -> list[OffsetRange]:
        """Return the parts of ranges that the queue still has.

        Raises
        ------
        OffsetsGoneError
            If that is not all, and it is not to be left out.
        """
        gone = [replace(r, end=min(r.end, now[r.topic].start)) for r in ranges if r.start < now[r.topic].start]
        if gone and self.strict:
            raise OffsetsGoneError(
                f"the queue removed messages before they were read: {describe(gone)}",
                state=_STATE,
                next_step="run more often, or keep more; with the option failOnDataLoss=false they are left out",
                ranges=gone,
            )
        if gone:
            logger.warning("lost: the queue removed messages before they were read: %s", describe(gone))
        return [replace(r, start=max(r.start, now[r.topic].start)) for r in ranges if r.end > now[r.topic].start]


class _Frame(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.source = _Streams(options)

    def partitions(self) -> Sequence[Share]:
        states = self.source.states()
        return self.source.shares([OffsetRange(stream, 0, s.start, s.end) for stream, s in states.items()])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return partition.records()


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset of Spark's has three numbers of each stream: where it was begun, how far it is read, and its id.

    Spark does not keep where a query began, so the first offset that it does keep says so: when the first batch is
    repeated, the queue may have removed some of it.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.source = _Streams(options)
        self.until: dict[str, StreamState] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {}  # Spark asks twice, so it has to be the same

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.source.most) if self.source.most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.until = self.source.states()

    def reportLatestOffset(self) -> dict[str, Any]:
        return {stream: [state.start, state.end, state.id] for stream, state in self.source.states().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        states = self.until or self.source.states()
        began = {stream: start.get(stream, [state.start, state.start, state.id]) for stream, state in states.items()}
        for stream, (_, at, own) in began.items():
            _check(stream, at, own, states[stream])
        before = {stream: {0: at} for stream, (_, at, _) in began.items()}
        ends = {stream: {0: max(state.end, before[stream][0])} for stream, state in states.items()}
        left = sum(ends[stream][0] - before[stream][0] for stream in ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else max(left, 1)
        after = batch_end(before, ends, most)
        if after == before:
            return start
        return start | {stream: [first, after[stream][0], own] for stream, (first, _, own) in began.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Share]:
        now = self.source.states()
        ranges = []
        for stream, (first, until, own) in end.items():
            if stream in now:  # else the query does not read it any more
                _check(stream, until, own, now[stream])
                ranges.append(OffsetRange(stream, 0, start[stream][1] if stream in start else first, until))
        return self.source.shares(self.source.there([r for r in ranges if r], now))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return partition.records()

    def commit(self, end: dict[str, Any]) -> None:
        for stream, (_, at, _) in end.items():
            if stream in self.source.config.streams:
                self.source.queue.done(stream, at)


def _check(stream: str, at: int, own: str, now: StreamState) -> None:
    if now.id != own or now.end < at:
        raise TopicRecreatedError(
            f"stream {stream!r} is another one than the query has read: "
            f"it was made again, or ends at {now.end} and was read up to {at}",
            state=_STATE,
            next_step="begin with a new checkpoint and a new name of the query",
        )


def _whole(options: Mapping[str, str], name: str) -> int:
    if not options.get(name, "0").isdigit():
        _refuse(name, options, "write a whole number")
    return int(options.get(name, "0"))


def _refuse(name: str, options: Mapping[str, str], next_step: str) -> NoReturn:
    raise ConfigError(f"option {name} is {options.get(name)!r}", state=_STATE, next_step=next_step)
