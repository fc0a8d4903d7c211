"""Asking a real broker for its offsets: exact answers, typed errors, a deadline."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable

import pytest
from tests.fixtures.runs import await_that

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.kafka import Cluster, KafkaSettings, PartitionState
from sluice.kafka.cluster import ends, starts
from sluice.local.kafka import Broker, Topics

pytestmark = pytest.mark.kafka

Make = Callable[..., str]


def cluster(bootstrap: str, timeout: float = 20) -> Cluster:
    return Cluster(KafkaSettings(bootstrap, {"bootstrap.servers": bootstrap}), timeout=timeout)


def fill(topics: Topics, name: str, *counts: int) -> None:
    topics.produce(name, [(p, None, b"v") for p, count in enumerate(counts) for _ in range(count)])


def test_a_snapshot_is_exact_for_every_topic_and_partition(broker: Broker, topics: Topics, topic: Make) -> None:
    one, two = sorted([topic(3), topic(1)])
    counts = {name: range(1, 1 + len(topics.ends(name))) for name in (one, two)}
    for name, numbers in counts.items():
        fill(topics, name, *numbers)
    states = cluster(broker.bootstrap).snapshot([two, one])
    assert [s.topic for s in states] == [one, two]
    assert ends(states) == {name: dict(enumerate(numbers)) for name, numbers in counts.items()}
    assert starts(states) == {name: dict.fromkeys(range(len(numbers)), 0) for name, numbers in counts.items()}
    assert len({s.topic_id for s in states} - {""}) == 2


def test_an_empty_topic_begins_and_ends_at_zero(broker: Broker, topics: Topics, topic: Make) -> None:
    (state,) = cluster(broker.bootstrap).snapshot([topic(2)])
    assert state.partitions == {0: PartitionState(0, 0), 1: PartitionState(0, 0)}


def test_deleted_records_move_the_start_and_added_partitions_show(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    fill(topics, name, 5)
    topics.delete_records(name, {0: 3})
    topics.add_partitions(name, 2)
    (state,) = cluster(broker.bootstrap).snapshot([name])
    assert state.partitions == {0: PartitionState(3, 5), 1: PartitionState(0, 0)}


def test_a_topic_made_anew_has_another_id(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    asked = cluster(broker.bootstrap)
    (before,), (same,) = asked.snapshot([name]), asked.snapshot([name])
    topics.recreate(name, 1)
    (after,) = asked.snapshot([name])
    assert before.topic_id == same.topic_id != after.topic_id


def test_an_open_transaction_holds_the_end_back_for_those_who_read_committed(
    broker: Broker, topics: Topics, topic: Make
) -> None:
    name = topic(1)
    fill(topics, name, 2)
    asked = cluster(broker.bootstrap)

    def end(isolation: str) -> int:
        (state,) = asked.snapshot([name], isolation_level=isolation)
        return state.partitions[0].end

    with topics.producer(transactional_id=f"t-{uuid.uuid4()}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, value=b"v", partition=0).get(30)
        assert (end("read_committed"), end("read_uncommitted")) == (2, 3)
        producer.commit_transaction()
    # a commit is acknowledged before the partition's leader has written its marker
    await_that(lambda: (end("read_committed"), end("read_uncommitted")) == (4, 4), "the transaction's end is seen")


def test_a_topic_that_is_not_there_is_a_mistake_and_is_not_made(broker: Broker, topics: Topics, topic: Make) -> None:
    with pytest.raises(ConfigError, match="no topic 'never-made'"):
        cluster(broker.bootstrap).snapshot([topic(1), "never-made"])
    assert not topics.exists("never-made")


def test_a_dead_broker_is_unreachable_and_names_its_address(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    broker.kill()
    try:
        with pytest.raises(SourceUnreachableError, match=broker.bootstrap):
            cluster(broker.bootstrap).snapshot([name])
    finally:
        broker.start()
    assert cluster(broker.bootstrap).snapshot([name])


def test_a_broker_that_does_not_answer_is_given_up(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    broker.pause()
    try:
        with pytest.raises(SourceUnreachableError):
            cluster(broker.bootstrap, timeout=2).snapshot([name])
    finally:
        broker.resume()


def test_one_server_of_several_is_enough(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        assert cluster(f"{nobody},{broker.bootstrap}").snapshot([name])


@pytest.mark.parametrize("bootstrap", ["no-such-host.invalid:9092", "127.0.0.1:1", "127.0.0.1", "127.0.0.1:port"])
def test_an_address_that_leads_nowhere_is_unreachable(bootstrap: str) -> None:
    with pytest.raises(SourceUnreachableError, match="cannot be reached"):
        cluster(bootstrap, timeout=5).snapshot(["t"])
