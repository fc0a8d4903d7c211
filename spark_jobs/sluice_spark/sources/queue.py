"""Streams of a message queue as a source."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from sluice.errors import START_OVER, OffsetsGoneError, TopicRecreatedError
from sluice.ranges import OffsetRange
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.source import QueueStreams
from sluice_spark.sources.queue_input import Streams
from sluice_spark.sources.range_source import RangedReader

__all__ = ["QueueReader"]


class QueueReader(RangedReader):
    """Reads messages of a pipeline's streams, as long as the queue keeps them.

    Parameters
    ----------
    source
        The open streams.
    """

    def __init__(self, spark: SparkSession, config: QueueSource, source: QueueStreams) -> None:
        self.spark = spark
        self.queue = source.queue
        self.ranged = Streams(config, source.connection)

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that are before the first message now.

        Raises
        ------
        TopicRecreatedError
            If a range is beyond the end of its stream.
        SluiceError
            If the queue does not answer.
        """
        states = {stream: self.queue.state(stream) for stream in {r.topic for r in ranges}}
        gone = []
        for r in ranges:
            now = states[r.topic]
            if now.end < r.end:
                raise TopicRecreatedError(
                    f"{r} was to be read, but the stream ends at {now.end}",
                    state="batches that were committed are in the sink and stay; nothing of this one is visible",
                    next_step=f"if the stream was made again, {START_OVER}",
                )
            if now.start > r.start:
                gone.append(OffsetRange(r.topic, r.partition, r.start, min(r.end, now.start)))
        return gone

    def refuse(self, ranges: Sequence[OffsetRange]) -> None:
        """Refuse to go on if a part of these ranges is gone."""
        gone = self.missing(ranges)
        if gone:
            raise OffsetsGoneError(
                f"{sum(map(len, gone))} planned messages are gone from the queue",
                state="batches that were committed are in the sink; nothing of this one is",
                next_step="run with --recovery ignore_range, which records them as lost and goes on; or use wal, and "
                "run more often than the queue removes messages",
                ranges=gone,
            )
