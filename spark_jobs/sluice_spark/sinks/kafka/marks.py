"""The marks of a topic's commits: records of a topic beside it, each sent in the transaction of its batch.

The key is the writer, the value the commit metadata. Compaction keeps the newest of each writer for good, so what was
committed last is known however long ago it was; a consumer group's offsets, which could hold a mark as well, expire.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from sluice.errors import ConfigError, SinkError
from sluice_spark.sinks.kafka.cluster import NOTHING_COMMITTED, Cluster

__all__ = ["newest", "read"]

_TICK = 0.2
WHOLE = 1000
"""So many of the newest marks are kept whole in memory. For others, :data:`_LASTING` is kept: a ledger that is further
behind than this was restored from a copy."""
_LASTING = ("app_id", "version", "attempt", "topic_id", "run", "staged", "rows", "schema")
patience = 30.0
"""Seconds without a mark after which the next ones are hidden by another program's open transaction."""


def read(cluster: Cluster, name: str, *, all_of_them: bool = True) -> list[dict[str, Any]]:
    """Return the commit metadata of all marks in the order of their commits; none if there is no such topic.

    Each has ``sent``, when it was sent, in milliseconds since 1970. All but the newest :data:`WHOLE` have ``cut`` and
    no account.

    Parameters
    ----------
    all_of_them
        Whether to wait for the outcome of transactions that are under way. The caller has ended its pipeline's own.

    Raises
    ------
    ConfigError
        If the cluster would remove marks.
    SinkError
        If it does not answer, or a transaction hides the newest marks.
    """
    topic = cluster.topic(name)
    if topic is None:
        return []
    if topic.policy and topic.policy != "compact":
        raise ConfigError(
            f"{cluster.what}: the topic {name} has cleanup.policy={topic.policy}, so marks of commits would be removed",
            state=NOTHING_COMMITTED,
            next_step=f"kafka-configs --alter --entity-type topics --entity-name {name} "
            "--add-config cleanup.policy=compact",
        )
    with cluster.telling():
        end = cluster.end_of(name) if all_of_them else 0
        return _read(cluster, TopicPartition(name, 0, OFFSET_BEGINNING), end)


def _read(cluster: Cluster, partition: TopicPartition, end: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    consumer = cluster.consumer(**{"isolation.level": "read_committed", "auto.offset.reset": "error"})
    try:
        consumer.assign([partition])
        last = time.monotonic()
        while True:
            for message in consumer.consume(1000, _TICK):
                error = message.error()
                if error is None:
                    mark = _mark(message.value())
                    if mark is not None:
                        found.append({**mark, "sent": message.timestamp()[1]})
                        if len(found) > WHOLE:
                            old = found[-WHOLE - 1]
                            found[-WHOLE - 1] = {k: old[k] for k in (*_LASTING, "sent") if k in old} | {"cut": True}
                    last = time.monotonic()
                elif error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= end:
                        return found
                elif (
                    error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not error.retriable()
                ):  # no group is used
                    raise KafkaException(error)
            if time.monotonic() - last > patience:
                raise SinkError(
                    f"{cluster.what}: the newest marks in {partition.topic} cannot be read: a transaction of another "
                    "program is open there, or the cluster does not answer",
                    state=NOTHING_COMMITTED,
                    next_step=f"let no other program write to {partition.topic}; run again",
                )
    finally:
        consumer.close()


def _mark(value: bytes | None) -> dict[str, Any] | None:
    """Return the commit metadata; None for what another program wrote."""
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and "app_id" in found else None


def newest(marks: Sequence[dict[str, Any]], writer: str) -> int:
    """Return the highest batch of a writer; -1 if there is none."""
    return max((int(mark["version"]) for mark in marks if mark["app_id"] == writer), default=-1)
