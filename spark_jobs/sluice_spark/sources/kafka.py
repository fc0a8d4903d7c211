"""Kafka as a source: a bounded stream for a run, and single ranges again when a few records are needed once more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import BEGIN_ANEW, TopicRecreatedError
from sluice.pipeline.model import KafkaSource
from sluice.ranges import OffsetRange, Positions
from sluice.sources.kafka import Cluster, KafkaSettings
from sluice.sources.kafka.cluster import TopicState

__all__ = ["KafkaRecords", "stream"]


# A bounded run wants volume, not latency: the client's defaults (500 records a poll, 1 MiB a fetch) cost a tenth of a
# large drain.
_BULK = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024)}

_EARLIEST = -2


def stream(
    spark: SparkSession,
    settings: KafkaSettings,
    source: KafkaSource,
    max_records: int,
    *,
    start: Positions | None = None,
    states: Iterable[TopicState] = (),
    headers: bool = False,
    over_gaps: bool = False,
) -> DataFrame:
    """Return the stream of all topics, at most about ``max_records`` a batch.

    Spark shares the cap out by partition size and gives a small partition at least one record, so that a batch may
    exceed it by the number of partitions.

    Parameters
    ----------
    start
        Where a checkpoint that is still empty starts; None for what the pipeline file says. Partitions among
        ``states`` that it does not name are read from their beginning.
    over_gaps
        Go on with what Kafka still has when it dropped some of a range; the caller finds out what. Otherwise such a
        range ends the query.
    """
    begin: str = source.starting_offsets
    if start is not None:
        known = {s.topic: dict.fromkeys(s.partitions, _EARLIEST) | start.get(s.topic, {}) for s in states}
        begin = json.dumps({topic: {str(p): o for p, o in parts.items()} for topic, parts in known.items()})
    return (
        spark.readStream.format("kafka")
        .options(**_BULK, **settings.for_spark())
        .option("subscribe", ",".join(source.topics))
        .option("startingOffsets", begin)
        .option("maxOffsetsPerTrigger", max_records)
        .option("kafka.isolation.level", source.isolation_level)
        .option("includeHeaders", str(headers).lower())
        .option("failOnDataLoss", str(not over_gaps).lower())
        .load()
    )


@dataclass(frozen=True)
class KafkaRecords:
    """Records by their offsets, for as long as Kafka keeps them."""

    spark: SparkSession
    settings: KafkaSettings
    source: KafkaSource
    cluster: Cluster

    def again(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, headers included, as a batch."""
        return reduce(DataFrame.unionByName, (self._read(part) for part in _rounds(ranges)))

    def _read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for item in ranges:
            starts.setdefault(item.topic, {})[str(item.partition)] = item.start
            ends.setdefault(item.topic, {})[str(item.partition)] = item.end
        assignment = {topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}
        return (
            self.spark.read.format("kafka")
            .options(**_BULK, **self.settings.for_spark())
            .option("assign", json.dumps(assignment))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("kafka.isolation.level", self.source.isolation_level)
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .load()
        )

    def gone(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that lie below the log start now.

        Raises
        ------
        TopicRecreatedError
            When they lie beyond the log end: what is there now is not what they were planned for.
        SluiceError
            When the broker does not say.
        """
        if not ranges:
            return []
        states = {s.topic: s.partitions for s in self.cluster.snapshot({r.topic for r in ranges})}
        gone: list[OffsetRange] = []
        for r in ranges:
            now = states[r.topic].get(r.partition)
            if now is None or now.end < r.end:
                raise TopicRecreatedError(
                    f"{r} was to be read, but the partition {'is gone' if now is None else f'ends at {now.end}'}",
                    state="batches that were committed are in the sink and stay; nothing of this one is visible",
                    next_step=f"if the topic was made anew, {BEGIN_ANEW}",
                )
            if now.start > r.start:
                gone.append(OffsetRange(r.topic, r.partition, r.start, min(r.end, now.start)))
        return gone

    def check(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Do nothing: Kafka does not say how many records it has."""


def _rounds(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Return the ranges in groups in which each partition stands once, as Kafka's reader wants them."""
    rounds: list[list[OffsetRange]] = []
    seen: dict[tuple[str, int], int] = {}
    for item in ranges:
        number = seen.get((item.topic, item.partition), 0)
        seen[item.topic, item.partition] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(item)
    return rounds
