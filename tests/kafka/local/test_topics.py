"""Making and filling topics, against a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from sluice.errors import SourceUnreachableError
from sluice.local.kafka import Broker, Record, Topics

pytestmark = pytest.mark.kafka


def read(broker: Broker, topic: str, partition: int, count: int, isolation: str = "read_uncommitted") -> list[object]:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        max_partition_fetch_bytes=16 * 1024 * 1024,
        consumer_timeout_ms=10_000,
    )
    try:
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek_to_beginning()
        return [next(consumer) for _ in range(count)]
    finally:
        consumer.close()


def test_the_ends_of_topics(topics: Topics, topic: Callable[..., str]) -> None:
    name = topic(2)
    assert topics.ends(name) == {0: 0, 1: 0}
    assert topics.produce(name, [(0, b"k", b"1"), (1, b"k", b"2"), (0, b"k", b"3")]) == [(0, 0), (1, 0), (0, 1)]
    topics.delete_records(name, {0: 1})
    assert topics.starts(name) == {0: 1, 1: 0}
    topics.add_partitions(name, 4)
    assert topics.ends(name) == {0: 2, 1: 1, 2: 0, 3: 0}
    topics.recreate(name, 1)
    assert topics.ends(name) == {0: 0}
    topics.delete(name)
    assert not topics.exists(name)
    with pytest.raises(UnknownTopicOrPartitionError):
        topics.ends(name)


def test_a_name_that_is_taken_is_refused(topics: Topics, topic: Callable[..., str]) -> None:
    with pytest.raises(TopicAlreadyExistsError):
        topics.create(topic(1), 1)


def test_a_record_keeps_its_time_headers_and_five_megabytes(
    broker: Broker, topics: Topics, topic: Callable[..., str]
) -> None:
    name = topic(1, retention_ms=-1)
    big = b"x" * 5_000_000
    topics.produce(name, [Record(0, b"key", big, 1_356_998_400_000, [("h", b"1"), ("h", b"2")])])
    (found,) = read(broker, name, 0, 1)
    assert (found.key, found.value, found.timestamp) == (b"key", big, 1_356_998_400_000)
    assert list(found.headers) == [("h", b"1"), ("h", b"2")]


def test_only_committed_records_are_read_and_markers_take_offsets(
    broker: Broker, topics: Topics, topic: Callable[..., str]
) -> None:
    name = topic(1)
    assert topics.produce_transaction(name, [(0, b"k", b"yes")], commit=True) == [(0, 0)]
    assert topics.produce_transaction(name, [(0, b"k", b"no")] * 2, commit=False) == [(0, 2), (0, 3)]
    assert topics.produce(name, [(0, b"k", b"plain")]) == [(0, 5)]
    assert topics.ends(name) == {0: 6}
    assert [r.value for r in read(broker, name, 0, 2, "read_committed")] == [b"yes", b"plain"]
    assert [r.value for r in read(broker, name, 0, 4)] == [b"yes", b"no", b"no", b"plain"]


def test_a_transaction_is_produced_once_its_end_can_be_read(topics: Topics, topic: Callable[..., str]) -> None:
    """Which it cannot, as seen from here, while another transaction is open before it."""
    name = topic(1)
    hasty = Topics(topics.bootstrap, timeout=3)
    with topics.producer(transactional_id=f"open-{name}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, value=b"v", partition=0).get(30)
        with pytest.raises(SourceUnreachableError, match="has an open transaction"):
            hasty.produce_transaction(name, [(0, None, b"v")], commit=True)
        producer.commit_transaction()


def test_the_helper_leaves_no_thread_behind(broker: Broker, topics: Topics, topic: Callable[..., str]) -> None:
    name = topic(1)
    before = threading.active_count()
    topics.produce(name, [(0, b"k", b"v")])
    topics.produce_transaction(name, [(0, b"k", b"v")], commit=True)
    topics.ends(name)
    assert threading.active_count() <= before
