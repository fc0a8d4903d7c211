"""Kafka as a source: a bounded stream for a run, and single ranges for records that are needed again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.errors import (
    START_OVER,
    AuthorizationError,
    OffsetsGoneError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
)
from sluice.ranges import OffsetRange, Positions, ranges_between
from sluice.sources.clusters import bare, bare_positions, named
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.kafka.source import KafkaTopics
from sluice.sources.state import TopicState
from sluice_spark.engine.failures import Sign, classify
from sluice_spark.sources.inputs import Input
from sluice_spark.sources.kafka_input import KafkaInput

__all__ = ["SIGNS", "KafkaReader"]


# A bounded run needs throughput, not latency: the client's defaults (500 records per poll, 1 MiB per fetch) make a
# large run a tenth slower.
_BULK = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024)}

_EARLIEST = -2

SIGNS = (
    Sign(
        AuthorizationError,
        ("TopicAuthorizationException", "GroupAuthorizationException", "SaslAuthenticationException"),
        "grant READ on topic and group",
    ),
    Sign(
        OffsetsGoneError,
        (
            "KAFKA_DATA_LOSS",
            "OffsetOutOfRange",
            "offsets missing",
            "Cannot fetch offset",
            "some data may have been missed",
        ),
        "run again: the error then names the ranges that are gone",
    ),
    Sign(
        OffsetsGoneError,
        ("Record is corrupt", "CorruptRecordException", "corrupt message when fetching", "please seek past the record"),
        "strategy replay cannot skip unreadable records; ignore_range or ignore_batch record them as lost and go on. "
        "If the broker has another replica, fix this one",
    ),
    Sign(
        OffsetsGoneError,
        ("that overflows when converting to Spark's microsecond-precision",),
        "Spark's Kafka source cannot read such a record, the Arrow path can: `sluice validate-spec` prints why it is "
        "not taken. Strategies ignore_range and ignore_batch record it as lost and go on",
    ),
    Sign(
        SourceUnreachableError,
        ("TimeoutException", "DisconnectException", "BrokerNotAvailable", "UnknownHostException", "Connection refused"),
        "start the broker; the next run catches up",
    ),
)
"""How Spark's messages show that Kafka failed."""


class KafkaReader:
    """Reads records of Kafka's topics, as long as Kafka retains them.

    Parameters
    ----------
    source
        The open topics, which have the address and know which offsets are still there.
    """

    signs = SIGNS

    def __init__(self, spark: SparkSession, config: KafkaSource, source: KafkaTopics) -> None:
        self.spark = spark
        self.config = config
        self.source = source
        self.cluster = source.cluster
        self.settings = source.cluster.settings

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        """Return the stream of all topics; see :class:`~sluice_spark.sources.base.SourceReader`.

        Spark divides the limit by partition size and gives each partition at least one record, so a batch may exceed
        the limit by the number of partitions.
        """
        begin = str(self.config.starting_offsets)  # a run that begins elsewhere names positions
        if start is not None:
            start = bare_positions(start)
            known = {
                bare(s.topic): dict.fromkeys(s.partitions, _EARLIEST) | start.get(bare(s.topic), {}) for s in states
            }
            begin = json.dumps({topic: {str(p): o for p, o in parts.items()} for topic, parts in known.items()})
        return self._named(
            self.spark.readStream.format("kafka")
            .options(**_BULK, **self.settings.for_spark())
            .option("subscribe", ",".join(self.source.topics))
            .option("startingOffsets", begin)
            .option("maxOffsetsPerTrigger", max_records)
            .option("kafka.isolation.level", self.config.isolation_level)
            .option("includeHeaders", str(headers).lower())
            .option("failOnDataLoss", str(not over_gaps).lower())
            .load()
        )

    def batch_end(self, start: Positions, ends: Positions, limit: int) -> Positions:
        """Return where a batch ends: as ``KafkaMicroBatchStream.rateLimit`` of Spark 4.2 computes it, to the digit."""
        sizes = {r: len(r) for r in ranges_between(start, ends)}
        total = float(sum(sizes.values()))
        found = {topic: dict(parts) for topic, parts in ends.items()}
        if total < 1:
            return found
        for r, size in sizes.items():
            share = limit * (size / total)
            found[r.topic][r.partition] = min(r.end, r.start + (math.ceil(share) if share < 1 else math.floor(share)))
        return found

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, including headers."""
        return reduce(DataFrame.unionByName, (self._read(part) for part in _rounds(ranges)))

    def _read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for item in ranges:
            starts.setdefault(bare(item.topic), {})[str(item.partition)] = item.start
            ends.setdefault(bare(item.topic), {})[str(item.partition)] = item.end
        assignment = {topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}
        return self._named(
            self.spark.read.format("kafka")
            .options(**_BULK, **self.settings.for_spark())
            .option("assign", json.dumps(assignment))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("kafka.isolation.level", self.config.isolation_level)
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .load()
        )

    def _named(self, records: DataFrame) -> DataFrame:
        """Give the records of another cluster than the first one the names of their streams."""
        prefix = self.source.config.prefix
        return records.withColumn("topic", F.concat(F.lit(prefix), F.col("topic"))) if prefix else records

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return the cluster: workers can read all ranges from it."""
        committed = self.config.isolation_level == "read_committed"
        return [(KafkaInput(self.settings.for_librdkafka(), committed), list(ranges))]

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that are below the log start now, or whose topic (of a pattern) was deleted.

        Raises
        ------
        TopicRecreatedError
            If a range is beyond the log end: the topic is not the one for which it was planned.
        SluiceError
            If the broker does not answer.
        """
        if not ranges:
            return []
        deleted = set(self.source.deleted({r.topic for r in ranges}))
        gone = [r for r in ranges if r.topic in deleted]
        prefix = self.source.config.prefix
        asked = {bare(r.topic) for r in ranges if r.topic not in deleted}
        states = {named(prefix, s.topic): s.partitions for s in self.cluster.snapshot(asked)}
        for r in ranges:
            if r.topic in deleted:
                continue
            now = states[r.topic].get(r.partition)
            if now is None or now.end < r.end:
                raise TopicRecreatedError(
                    f"{r} was to be read, but the partition {'is gone' if now is None else f'ends at {now.end}'}",
                    state="batches that were committed are in the sink and stay; nothing of this one is visible",
                    next_step=f"if the topic was recreated, {START_OVER}",
                )
            if now.start > r.start:
                gone.append(OffsetRange(r.topic, r.partition, r.start, min(r.end, now.start)))
        return gone

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Do nothing: Kafka does not say how many records it has."""

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Ask the broker first, then read the message."""
        return classify(error, lambda: self.missing(ranges), self.signs)


def _rounds(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Divide the ranges into groups with each partition at most once, as Spark's Kafka reader requires."""
    rounds: list[list[OffsetRange]] = []
    seen: dict[tuple[str, int], int] = {}
    for item in ranges:
        number = seen.get((item.topic, item.partition), 0)
        seen[item.topic, item.partition] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(item)
    return rounds
