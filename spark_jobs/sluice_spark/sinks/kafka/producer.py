"""The transactional producer of one pipeline into one topic.

Its id is the same in all processes. The cluster lets only the newest producer of an id commit. To open one ends the
transaction that a killed driver left open, and waits for one that was being committed. So what is read of the marks
afterwards is all that there is, until this producer adds more or a newer one takes its place.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from sluice.errors import LeaseHeldError, SinkError, SluiceError
from sluice.faults import point
from sluice.sinks.kafka import KafkaSink
from sluice_spark.sinks.base import Refusal, RowsRefusedError
from sluice_spark.sinks.kafka import cluster as clusters
from sluice_spark.sinks.kafka.cluster import LOG, NOTHING_COMMITTED, Cluster, Topic
from sluice_spark.sinks.kafka.marks import read

__all__ = ["Record", "Transactions", "UnknownOutcomeError"]

_ROOM, _OF_HEADER = 128, 10
"""Bytes of a batch that are no part of a record's key, value and headers, at most, and those that each header adds."""
_MARGIN = 60_000
"""Milliseconds by which the cluster's clock may differ."""
_BATCH = 1_000_000


class UnknownOutcomeError(Exception):
    """Whether a transaction was committed is unknown."""


class Record(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int
    """-1 leaves it to the key."""
    timestamp: int | None
    """Milliseconds since 1970; 0 means now."""
    origin: tuple[str | None, int | None, int | None]
    """Topic, partition and offset that its row came from; None for those of an aggregate."""

    @property
    def called(self) -> str:
        """Its row in words."""
        topic, partition, offset = self.origin
        return "a row" if offset is None else f"the row of {topic}-{partition} offset {offset}"


class Transactions:
    """A producer that fences all older ones of its pipeline and topic, and the marks that are there."""

    def __init__(self, cluster: Cluster, config: KafkaSink, topic: Topic | None) -> None:
        self._cluster, self._config = cluster, config
        self._largest = max(1, min(_BATCH, topic.largest - _ROOM)) if topic is not None else _BATCH
        self._producer = self._opened()
        self.marks = read(cluster, config.marks)

    def send(self, topic: Topic, records: Iterable[Record], count: int, mark: dict[str, Any]) -> None:
        """Send records and the mark of their batch in one transaction.

        Parameters
        ----------
        count
            How many records there are.

        Raises
        ------
        SluiceError
            If the cluster refuses or a record cannot be sent; readers see nothing of the batch.
        UnknownOutcomeError
            If it is unknown whether the transaction was committed.
        """
        began, asked = time.monotonic(), False
        try:
            self._producer.begin_transaction()
            sent = self._send_all(topic, records)
            if sent != count:
                raise SinkError(
                    f"{sent:,} of {count:,} staged rows were read for {self._cluster.what}",
                    state=NOTHING_COMMITTED,
                    next_step="run again",
                )
            self._produce(self._config.marks, value=json.dumps(mark).encode(), key=mark["app_id"].encode(), partition=0)
            if left := self._producer.flush(self._seconds):
                raise SinkError(
                    f"{self._cluster.what}: {left:,} records were not acknowledged within transaction_timeout",
                    state=NOTHING_COMMITTED,
                    next_step="run again when the cluster answers",
                )
            point("records-sent")
            asked = True
            self._commit()
        except KafkaException as error:
            self._give_up()
            raise self._told(error.args[0], began, asked=asked) from error
        except UnknownOutcomeError:
            raise
        except (OSError, pa.ArrowException) as error:
            self._give_up()
            raise SinkError(
                f"the staged rows for {self._cluster.what} cannot be read: {error}",
                state=NOTHING_COMMITTED,
                next_step="run again: the next run writes them again",
            ) from error
        except BaseException:  # readers of the topic would be held up until the transaction times out
            self._give_up()
            raise
        self.marks.append({**mark, "sent": int(time.time() * 1000)})

    def _send_all(self, topic: Topic, records: Iterable[Record]) -> int:
        name, sent = self._config.topic, 0
        first: RowsRefusedError | None = None
        refused: dict[tuple[str, int, int], Refusal] = {}
        for record in records:
            if (error := self._misfit(topic, record)) is not None:
                first = first or error
                of, partition, offset = record.origin
                if of is not None and partition is not None and offset is not None:
                    refused[of, partition, offset] = Refusal(error.what)
            if first is not None:  # the others are sent in the next transaction
                continue
            self._produce(
                name,
                value=record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp=record.timestamp or 0,  # which the client takes for now
            )
            sent += 1
        if first is not None:
            first.rows = refused
            raise first
        return sent

    def _misfit(self, topic: Topic, record: Record) -> RowsRefusedError | None:
        """Return the refusal of a record that the topic cannot take; None if it can."""
        room = topic.largest - _ROOM
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(key) + len(value) + _OF_HEADER for key, value in record.headers)
        if size > room:
            return RowsRefusedError(
                f"{record.called} makes a record of {size:,} bytes, and {self._cluster.what} takes about {room:,}",
                state=NOTHING_COMMITTED,
                next_step="raise the topic's max.message.bytes, or add a row rule that refuses such records",
            )
        now, sent = time.time() * 1000, record.timestamp
        # Kafka's client sends the time 0 as that of now
        if sent is not None and not max(1, now - topic.before + _MARGIN) <= sent <= now + topic.after - _MARGIN:
            why = "takes none so far from now" if sent else "cannot be sent one"
            return RowsRefusedError(
                f"{record.called} makes a record of the time {sent:,} ms since 1970, and {self._cluster.what} {why}",
                state=NOTHING_COMMITTED,
                next_step="raise the topic's message.timestamp.after.max.ms (or before), or write timestamp: now below "
                "sink.kafka; or add a row rule that refuses such records",
            )
        if not -1 <= record.partition < topic.partitions:
            return RowsRefusedError(
                f"{record.called} is for partition {record.partition} ({self._config.partition}), and "
                f"{self._cluster.what} has partitions 0 to {topic.partitions - 1}",
                state=NOTHING_COMMITTED,
                next_step="correct the transform, or add a row rule that refuses such records",
            )
        if record.key is None and "compact" in topic.policy:
            return RowsRefusedError(
                f"{record.called} makes a record without a key, and {self._cluster.what} is compacted",
                state=NOTHING_COMMITTED,
                next_step="name a column in sink.kafka.key, or add a row rule that refuses such records",
            )
        return None

    def _produce(self, topic: str, **record: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, **record)
                return
            except BufferError:  # the cluster is slower than we are
                self._producer.poll(0.1)

    def _commit(self) -> None:
        until = time.monotonic() + 2 * self._seconds
        while True:
            try:
                self._producer.commit_transaction()
                return
            except KafkaException as error:
                what = error.args[0]
                if what.retriable() and time.monotonic() < until:
                    continue
                if what.txn_requires_abort() or what.code() in clusters.FENCED:
                    raise
                raise UnknownOutcomeError from error

    def _give_up(self) -> None:
        """End the transaction, so that readers are not held up; what the cluster does not hear, it does later."""
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.abort_transaction(clusters.PATIENCE)

    def _told(self, error: KafkaError, began: float, *, asked: bool) -> SluiceError:
        """Return the error of Sluice; ``asked`` if the cluster was asked to commit, and may have done so before."""
        found = self._cluster.describe(error)
        if isinstance(found, LeaseHeldError) and time.monotonic() - began >= self._seconds:
            return SinkError(
                f"{self._cluster.what}: a transaction took longer than {self._seconds:.0f} s, so the cluster ended it",
                state=NOTHING_COMMITTED,
                next_step="raise sink.kafka.transaction_timeout, or lower max_records_per_batch; run again",
            )
        if asked and isinstance(found, LeaseHeldError):
            found.state = (
                "this batch is visible to readers as a whole, or not at all: the cluster may have committed it before; "
                "the next run looks before it writes"
            )
        return found

    @property
    def _seconds(self) -> float:
        return self._config.transaction_timeout / timedelta(seconds=1)

    def _opened(self) -> Producer:
        self._cluster.reached()
        settings = self._cluster.client(
            **{
                "transactional.id": self._cluster.transactional_id,
                "transaction.timeout.ms": int(self._seconds * 1000),
                "compression.type": self._config.compression,
                "partitioner": "murmur2_random",  # as the Java client's, so that a key is where others look for it
                "linger.ms": 20,
                "message.max.bytes": 1_000_000_000,  # each record is compared with its topic's limit
                "batch.size": self._largest,
                "queue.buffering.max.kbytes": 1 << 18,
            }
        )
        with self._cluster.telling():
            producer = self._cluster.heard(Producer(settings, logger=LOG))
            producer.init_transactions(2 * clusters.PATIENCE)
        return producer
