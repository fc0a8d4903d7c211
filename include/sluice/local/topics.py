"""Creates, deletes and fills topics of a local broker."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sluice.errors import SourceUnreachableError

__all__ = ["Record", "Topics"]

T = TypeVar("T")

_UNKNOWN_TOPIC = 3
_16_MIB = 16 * 1024 * 1024


class Record(NamedTuple):
    """A record to produce; a plain tuple in the same order works as well.

    Without a partition, the key's murmur2 hash chooses one, as in the Java client. Key and value must not both be None.
    """

    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class Topics:
    """Administers and fills topics of one broker; each call opens and closes its own client.

    Every call returns or raises within about ``timeout`` seconds: :class:`SourceUnreachableError` if the broker does
    not answer, otherwise kafka-python's error.
    """

    def __init__(self, bootstrap: str, *, timeout: float = 30) -> None:
        self.bootstrap = bootstrap
        self.timeout = timeout

    def create(self, name: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Create a topic and wait until each partition has a leader."""
        spec = {
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": {key: str(value) for key, value in (config or {}).items()},
        }
        with self._admin() as admin:
            self._within(lambda: admin.create_topics({name: spec}))
            self._await(lambda: len(self._leaders(admin, name)) == partitions, f"topic {name} has no leaders")

    def delete(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        with self._admin() as admin:
            self._within(lambda: admin.delete_topics([name]))
            self._await(lambda: name not in admin.list_topics(), f"topic {name} is still there")

    def recreate(self, name: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Delete a topic and create an empty one of the same name, with another topic id and offsets from zero."""
        self.delete(name)
        self.create(name, partitions, config)

    def exists(self, name: str) -> bool:
        """Return whether a topic exists."""
        with self._admin() as admin:
            return name in self._within(admin.list_topics)

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to ``total`` partitions and wait until each has a leader."""
        with self._admin() as admin:
            self._within(lambda: admin.create_partitions({name: total}))
            self._await(lambda: len(self._leaders(admin, name)) == total, f"topic {name} has no {total} leaders")

    def delete_records(self, name: str, before: Mapping[int, int]) -> None:
        """Remove the records below an offset, per partition, as retention does."""
        from kafka import TopicPartition

        offsets = {TopicPartition(name, partition): offset for partition, offset in before.items()}
        with self._admin() as admin:
            self._within(lambda: admin.delete_records(offsets))

    def starts(self, name: str) -> dict[int, int]:
        """Return each partition's log start."""
        with self._admin() as admin:
            return self._offsets(admin, name, earliest=True)

    def ends(self, name: str) -> dict[int, int]:
        """Return each partition's high watermark, which includes open transactions."""
        with self._admin() as admin:
            return self._offsets(admin, name, earliest=False)

    def broker_count(self) -> int:
        """Return the number of brokers in the cluster's metadata."""
        with self._admin() as admin:
            return len(self._within(admin.describe_cluster)["brokers"])

    def produce(
        self, topic: str, records: Sequence[Record | tuple[Any, ...]], **producer_config: object
    ) -> list[tuple[int, int]]:
        """Produce records in order, wait for all acknowledgements, and return each record's partition and offset."""
        with self.producer(**producer_config) as producer:
            return self._send(producer, topic, records)

    def produce_transaction(
        self, topic: str, records: Sequence[Record | tuple[Any, ...]], *, commit: bool
    ) -> list[tuple[int, int]]:
        """Produce records in one transaction, commit or abort it, and return each record's partition and offset.

        The transaction's marker takes one more offset in each partition that it wrote to. A broker writes it a moment
        after it has answered: this waits until those who read committed records can pass the markers, so no other
        transaction may be open in these partitions.
        """
        with self.producer(transactional_id=f"sluice-{uuid.uuid4()}") as producer:
            self._within(producer.init_transactions)
            producer.begin_transaction()
            placed = self._send(producer, topic, records)
            self._within(producer.commit_transaction if commit else producer.abort_transaction)
        beyond = {partition: offset + 2 for partition, offset in sorted(placed)}
        with self._admin() as admin:
            self._await(lambda: self._can_be_read(admin, topic, beyond), f"topic {topic} has an open transaction")
        return placed

    def _can_be_read(self, admin: Any, name: str, upto: Mapping[int, int]) -> bool:
        ends = self._offsets(admin, name, earliest=False, committed=True)
        return all(ends[partition] >= end for partition, end in upto.items())

    def _send(self, producer: Any, topic: str, records: Sequence[Record | tuple[Any, ...]]) -> list[tuple[int, int]]:
        futures = []
        for each in records:
            record = Record(*each)
            futures.append(
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
            )
        producer.flush(self.timeout)
        metadata = [future.get(self.timeout) for future in futures]
        return [(each.partition, each.offset) for each in metadata]

    def _offsets(self, admin: Any, name: str, *, earliest: bool, committed: bool = False) -> dict[int, int]:
        from kafka import IsolationLevel, TopicPartition
        from kafka.admin import OffsetSpec
        from kafka.errors import UnknownTopicOrPartitionError

        spec = OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(name, partition): spec for partition in self._leaders(admin, name)}
        if not wanted:
            raise UnknownTopicOrPartitionError(name)
        found = self._within(lambda: admin.list_partition_offsets(wanted, isolation_level=isolation))
        return {partition.partition: found[partition].offset for partition in sorted(found)}

    def _leaders(self, admin: Any, name: str) -> dict[int, int]:
        from kafka.errors import for_code

        (topic,) = self._within(lambda: admin.describe_topics([name]))
        if topic["error_code"] and topic["error_code"] != _UNKNOWN_TOPIC:
            raise for_code(topic["error_code"])(name)
        return {each["partition_index"]: each["leader_id"] for each in topic["partitions"] if each["leader_id"] >= 0}

    def _await(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self.timeout
        while not condition():
            if time.monotonic() > deadline:
                raise SourceUnreachableError(f"after {self.timeout} s {otherwise} (broker {self.bootstrap})")
            time.sleep(0.02)

    def _within(self, call: Callable[[], T]) -> T:
        """Run a call of kafka-python with a time limit; kafka-python itself limits only each request."""
        outcome: dict[str, Any] = {}

        def run() -> None:
            try:
                outcome["result"] = call()
            except BaseException as error:
                outcome["error"] = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self.timeout)
        if "error" in outcome:
            raise outcome["error"]
        if "result" not in outcome:
            raise self.unreachable("did not answer in time")
        result: T = outcome["result"]
        return result

    def unreachable(self, why: str) -> SourceUnreachableError:
        """Return the error of a broker that does not do what it is asked."""
        return SourceUnreachableError(
            f"the broker at {self.bootstrap} {why}",
            next_step="python -m sluice.local.kafka status",
        )

    def _probe(self) -> None:
        """Fail early, because each kafka-python client that cannot connect leaks a thread."""
        host, _, port = self.bootstrap.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=min(5, self.timeout)).close()
        except OSError as error:
            raise self.unreachable(f"cannot be reached: {error}") from error

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Any]:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaTimeoutError

        self._probe()
        milliseconds = int(self.timeout * 1000)
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap,
                request_timeout_ms=milliseconds,
                bootstrap_timeout_ms=milliseconds,
            )
        except KafkaTimeoutError as error:
            raise self.unreachable("did not answer in time") from error
        try:
            yield admin
        finally:
            admin.close()

    @contextlib.contextmanager
    def producer(self, **config: object) -> Iterator[Any]:
        """Open an idempotent producer with ``acks=all`` for the duration of the block."""
        from kafka import KafkaProducer
        from kafka.errors import KafkaTimeoutError

        self._probe()
        milliseconds = int(self.timeout * 1000)
        settings: dict[str, object] = {
            "acks": "all",
            "linger_ms": 5,
            "batch_size": 128 * 1024,
            "max_request_size": _16_MIB,
            "max_block_ms": milliseconds,
            "delivery_timeout_ms": milliseconds,
            "request_timeout_ms": max(1000, milliseconds // 2),
            "bootstrap_timeout_ms": milliseconds,
            "allow_auto_create_topics": False,
        }
        try:
            producer = KafkaProducer(bootstrap_servers=self.bootstrap, **(settings | config))
        except KafkaTimeoutError as error:
            raise self.unreachable("did not answer in time") from error
        try:
            yield producer
        finally:
            with contextlib.suppress(KafkaTimeoutError):
                producer.close(timeout=self.timeout)
