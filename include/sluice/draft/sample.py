"""Reads a sample of a topic: some of its oldest and some of its newest records, of each partition."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.connections import Connection
from sluice.errors import SourceUnreachableError, described
from sluice.sources.kafka.cluster import cluster_of
from sluice.sources.state import PartitionState

__all__ = ["Sampled", "sample", "stretches"]

_PATIENCE = 60.0
"""Seconds for the whole sample; offsets without a record take none."""


@dataclass(frozen=True)
class Sampled:
    """One record of a sample; ``timestamp`` is Kafka's, in milliseconds."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def stretches(partitions: Mapping[int, PartitionState], records: int) -> Iterator[tuple[int, int, int]]:
    """Yield the offsets to read, ``(partition, start, end)``: of each partition its oldest and its newest ones; pure.

    A schema that changed shows in both. What a partition lacks, the others give.
    """
    left, waiting = records, sorted(partitions.items(), key=lambda item: item[1].end - item[1].start)
    for n, (number, state) in enumerate(waiting):
        share = -(-left // (len(waiting) - n))
        size = min(share, state.end - state.start)
        left -= size
        if size == state.end - state.start:
            if size:
                yield number, state.start, state.end
            continue
        oldest = size // 2
        if oldest:
            yield number, state.start, state.start + oldest
        if size - oldest:
            yield number, state.end - (size - oldest), state.end


def sample(connection: Connection, topic: str, records: int) -> list[Sampled]:
    """Return at most so many records of a topic; fewer if it has fewer, or if offsets hold none.

    Raises
    ------
    SourceUnreachableError, AuthorizationError, ConfigError
        As :meth:`Cluster.snapshot`; also if records do not arrive.
    """
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    with cluster_of(connection) as cluster:  # its errors say what is wrong with a connection, or a topic
        (state,) = cluster.snapshot([topic])
    consumer = KafkaConsumer(**cluster.settings.for_python(), enable_auto_commit=False, group_id=None)
    found: list[Sampled] = []
    try:
        until = time.monotonic() + _PATIENCE
        for number, start, end in stretches(state.partitions, records):
            partition = TopicPartition(topic, number)
            consumer.assign([partition])
            consumer.seek(partition, start)
            while consumer.position(partition) < end:
                if time.monotonic() > until:
                    raise SourceUnreachableError(
                        f"partition {number} of {topic!r} sent no record at offset {consumer.position(partition)} "
                        f"within {_PATIENCE:.0f} s",
                        state="nothing was written",
                        next_step="run it again, with fewer --records if the records are large",
                    )
                for batch in consumer.poll(timeout_ms=500).values():
                    found += [_record(r) for r in batch if r.offset < end]
    except KafkaError as error:
        raise SourceUnreachableError(
            f"{topic!r} cannot be read: {described(error)}",
            state="nothing was written",
            next_step="check the broker and the right to read the topic, then run it again",
        ) from error
    finally:
        consumer.close()
    return found


def _record(record: Any) -> Sampled:
    return Sampled(record.partition, record.offset, record.timestamp, record.key, record.value)
