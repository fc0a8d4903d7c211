"""Streams of a message queue as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import BEGIN_ANEW, OffsetsGoneError, SluiceError, TopicRecreatedError
from sluice.ranges import OffsetRange, Positions
from sluice.sources.queue.config import QueueSource
from sluice.sources.queue.source import QueueStreams
from sluice.sources.state import TopicState
from sluice_spark.engine.failures import Sign, classify
from sluice_spark.sources import ranged
from sluice_spark.sources.inputs import Input
from sluice_spark.sources.queue_input import Streams
from sluice_spark.sources.ranged import frame_of, stream_of

__all__ = ["QueueReader"]


class QueueReader:
    """Reads messages of a pipeline's streams, as long as the queue keeps them.

    Parameters
    ----------
    source
        The open streams.
    """

    signs: Sequence[Sign] = ()

    def __init__(self, spark: SparkSession, config: QueueSource, source: QueueStreams) -> None:
        self.spark = spark
        self.queue = source.queue
        self._streams = Streams(config, source.connection)

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        """Return the stream of all messages; see :class:`~sluice_spark.sources.base.SourceReader`."""
        return stream_of(self.spark, self._streams, max_records, start=start, states=states)

    def batch_end(self, start: Positions, ends: Positions, limit: int) -> Positions:
        """Return where a batch ends; see :class:`~sluice_spark.sources.base.Foreseeable`."""
        return ranged.batch_end(start, ends, limit)

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, including headers."""
        return frame_of(self.spark, self._streams, ranges)

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return the queue: workers can read all ranges from it."""
        return [(self._streams.input(ranges), list(ranges))]

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
                    next_step=f"if the stream was made again, {BEGIN_ANEW}",
                )
            if now.start > r.start:
                gone.append(OffsetRange(r.topic, r.partition, r.start, min(r.end, now.start)))
        return gone

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Do nothing: messages may have been deleted."""

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Ask the queue first, then read the message."""
        return classify(error, lambda: self._refuse(ranges), self.signs)

    def _refuse(self, ranges: Sequence[OffsetRange]) -> None:
        gone = self.missing(ranges)
        if gone:
            raise OffsetsGoneError(
                f"{sum(map(len, gone))} planned messages are gone from the queue",
                state="batches that were committed are in the sink; nothing of this one is",
                next_step="run with --recovery ignore_range, which records them as lost and goes on; or use wal, and "
                "run more often than the queue removes messages",
                ranges=gone,
            )
