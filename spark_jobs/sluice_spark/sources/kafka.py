"""Kafka as a source: a bounded stream for a run, and single ranges again when a few records are needed once more."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from sluice.kafka import KafkaSettings
from sluice.ranges import OffsetRange
from sluice.spec.model import KafkaSource

__all__ = ["read_ranges", "stream"]


# A bounded run wants volume, not latency: the client's defaults (500 records a poll, 1 MiB a fetch) cost a tenth of a
# large drain.
_BULK = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024)}


def stream(spark: SparkSession, settings: KafkaSettings, source: KafkaSource, max_records: int) -> DataFrame:
    """Return the stream of all topics, at most about ``max_records`` a batch.

    Spark shares the cap out by partition size and gives a small partition at least one record, so that a batch may
    exceed it by the number of partitions. ``failOnDataLoss`` is on: a range that Kafka no longer has ends the query.
    """
    return (
        spark.readStream.format("kafka")
        .options(**_BULK, **settings.for_spark())
        .option("subscribe", ",".join(source.topics))
        .option("startingOffsets", source.starting_offsets)
        .option("maxOffsetsPerTrigger", max_records)
        .option("kafka.isolation.level", source.isolation_level)
        .option("failOnDataLoss", "true")
        .load()
    )


def read_ranges(
    spark: SparkSession, settings: KafkaSettings, source: KafkaSource, ranges: Sequence[OffsetRange]
) -> DataFrame:
    """Return exactly the records of these ranges, headers included, as a batch."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for item in ranges:
        starts.setdefault(item.topic, {})[str(item.partition)] = item.start
        ends.setdefault(item.topic, {})[str(item.partition)] = item.end
    assignment = {topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}
    return (
        spark.read.format("kafka")
        .options(**_BULK, **settings.for_spark())
        .option("assign", json.dumps(assignment))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("kafka.isolation.level", source.isolation_level)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
    )
