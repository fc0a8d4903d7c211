"""Asking a real broker for its offsets: exact answers, typed errors, a deadline."""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from tests.fixtures.node import SecondNode
from tests.fixtures.runs import await_that

from sluice.errors import ConfigError, SluiceError, SourceUnreachableError
from sluice.local.kafka import Broker, Topics
from sluice.sources.kafka import Cluster, FirstUnread, KafkaSettings, PartitionState
from sluice.sources.kafka.cluster import ends, starts
from sluice.sources.kafka.config import KafkaSource

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
    (of_cluster,) = {s.topic_id.rpartition("/")[0] for s in states}
    assert of_cluster, "an id begins with that of the cluster"


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
    assert before.topic_id.rpartition("/")[0] == after.topic_id.rpartition("/")[0]


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


# --- one client, and no trace of it ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """Clients that other tests forgot, and that a collection would end, are none of those that are counted here."""
    gc.collect()


def ours() -> set[threading.Thread]:
    """Return the threads that clients of Kafka keep here."""
    return {t for t in threading.enumerate() if "kafka" in t.name}


def test_twenty_questions_are_one_client(broker: Broker, topics: Topics, topic: Make) -> None:
    name, before = topic(1), ours()
    with cluster(broker.bootstrap) as asked:
        asked.look([name])
        kept, during = asked._kept[0], ours()
        for _ in range(20):
            assert asked.look([name])[0].partitions
        assert asked._kept == [kept]
        assert ours() <= during
        assert len(during - before) == 1
    assert ours() <= before


def test_who_forgets_a_cluster_leaves_no_thread(broker: Broker, topics: Topics, topic: Make) -> None:
    name, before = topic(1), ours()
    for _ in range(20):
        cluster(broker.bootstrap).snapshot([name])
    gc.collect()
    await_that(lambda: ours() <= before, "the threads are gone")


def test_twenty_questions_to_a_broker_that_is_down_leave_no_thread(broker: Broker, topics: Topics, topic: Make) -> None:
    name, before = topic(1), set(threading.enumerate())
    kept = cluster(broker.bootstrap, timeout=3)
    kept.look([name])
    broker.kill()
    try:
        for asked in [kept] * 10 + [cluster(broker.bootstrap, timeout=3) for _ in range(10)]:
            with pytest.raises(SourceUnreachableError):
                asked.look([name])
        await_that(lambda: set(threading.enumerate()) <= before, "the threads are gone")
    finally:
        broker.start()
    assert kept.look([name])[0].partitions == {0: PartitionState(0, 0)}, "it recovers by itself"
    kept.close()


def test_a_listener_that_never_answers_leaves_no_thread() -> None:
    """What a client cannot bootstrap from: kafka-python alone would leave a thread for each."""
    before = set(threading.enumerate())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        for _ in range(5):
            begun = time.monotonic()
            with pytest.raises(SourceUnreachableError, match="cannot be reached"):
                cluster(f"127.0.0.1:{listener.getsockname()[1]}", timeout=0.5).look(["t"])
            assert time.monotonic() - begun < 2
        await_that(lambda: set(threading.enumerate()) <= before, "the threads are gone")


def test_a_broker_that_freezes_is_given_up_in_time_and_asked_again(broker: Broker, topics: Topics, topic: Make) -> None:
    name, before = topic(1), set(threading.enumerate())
    with cluster(broker.bootstrap, timeout=1) as asked:
        asked.look([name])
        broker.pause()
        try:
            for _ in range(3):
                begun = time.monotonic()
                with pytest.raises(SourceUnreachableError):
                    asked.look([name])
                assert time.monotonic() - begun < 2.5
        finally:
            broker.resume()
        await_that(lambda: _answers(asked, name), "it recovers by itself")
    await_that(lambda: set(threading.enumerate()) <= before, "the threads are gone")


def _said_of(asked: Cluster, name: str, partition: int) -> str:
    try:
        return str(asked.look([name])[0].errors.get(partition))
    except SluiceError as error:
        return error.what


def _answers(asked: Cluster, name: str) -> bool:
    try:
        return bool(asked.look([name])[0].partitions)
    except SluiceError:
        return False


def test_a_broker_that_was_started_again_is_asked_by_the_same_cluster(
    broker: Broker, topics: Topics, topic: Make
) -> None:
    name = topic(1)
    with cluster(broker.bootstrap) as asked:
        asked.look([name])
        broker.kill()
        broker.start()
        assert asked.look([name])[0].partitions == {0: PartitionState(0, 0)}


def test_many_threads_share_one_client(broker: Broker, topics: Topics, topic: Make) -> None:
    names, before = [topic(2), topic(3)], ours()
    with cluster(broker.bootstrap) as asked, ThreadPoolExecutor(8, thread_name_prefix="asks") as pool:
        answers = list(pool.map(lambda _: asked.look(names), range(100)))
        assert len(ours() - before) == 1
    assert all(answer == answers[0] for answer in answers)


def test_a_thread_that_closes_the_client_does_not_stop_the_others(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    with cluster(broker.bootstrap) as asked, ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda n: asked.close() if n % 10 == 0 else asked.look([name]), range(100))
        assert all(answer is None or answer[0].partitions for answer in answers)


def test_a_forked_child_asks_with_a_client_of_its_own_and_harms_nobody(
    broker: Broker, topics: Topics, topic: Make
) -> None:
    name = topic(1)
    with cluster(broker.bootstrap) as asked:
        asked.look([name])
        pid = os.fork()
        if pid == 0:  # the child
            code = 1
            try:
                if asked.look([name])[0].partitions:
                    asked.close()
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        kept = asked._kept[0]
        assert asked.look([name])[0].partitions
        assert asked._kept == [kept], "the parent's client was left alone"


# --- partitions on their own -----------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_an_error_of_its_own(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    with cluster(broker.bootstrap) as asked:
        mine, never = sorted(asked.look([name, "zz-never-made"]), key=lambda s: s.topic)
    assert mine.partitions == {0: PartitionState(0, 0)}
    assert isinstance(never.error, ConfigError)


def test_a_partition_without_a_leader_is_unknown_and_the_others_answer(second_node: SecondNode) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    second_node.create(name, {0: 1, 1: 2})
    with cluster(second_node.first.bootstrap, timeout=8) as asked:
        (state,) = asked.look([name])
        assert set(state.partitions) == {0, 1}
        second_node.freeze()
        begun = time.monotonic()
        (state,) = asked.look([name])
        assert time.monotonic() - begun < 8
        assert (set(state.partitions), set(state.errors)) == ({0}, {1}), "a leader that is silent"
        second_node.kill()
        await_that(lambda: "has no leader" in _said_of(asked, name, 1), "the leader is gone")
        (state,) = asked.look([name])
        assert (set(state.partitions), set(state.errors)) == ({0}, {1})
        assert isinstance(state.errors[1], SourceUnreachableError)
        with pytest.raises(SourceUnreachableError, match=f"{name}-1"):
            asked.snapshot([name])


# --- records ---------------------------------------------------------------------------------------------------------

LONG_AGO = 1_700_000_000


def first(
    asked: Cluster, name: str, position: int, end: int, isolation: str = "read_uncommitted"
) -> FirstUnread | None:
    key = (name, 0)
    return asked.first_unread({key: position}, {key: end}, isolation_level=isolation).get(key)


def timed(topics: Topics, name: str, *seconds: int, **config: object) -> None:
    topics.produce(name, [(0, b"k", b"v", 1000 * (LONG_AGO + s)) for s in seconds], **config)


def test_the_first_unread_record_is_the_one_at_the_position(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    timed(topics, name, 5, 3, 9)  # out of the order of time, and all in one batch
    with cluster(broker.bootstrap) as asked:
        assert [first(asked, name, p, 3) for p in range(3)] == [
            FirstUnread(LONG_AGO + s, "CreateTime") for s in (5, 3, 9)
        ]  # fmt: skip


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_batch_that_is_larger_than_a_share_of_the_answer_is_fetched_too(
    broker: Broker, topics: Topics, topic: Make, codec: str | None
) -> None:
    name = topic(1)
    records = [(0, None, os.urandom(200_000), 1000 * (LONG_AGO + s)) for s in (1, 2)]
    topics.produce(name, records, compression_type=codec, max_request_size=1_000_000, batch_size=900_000)
    with cluster(broker.bootstrap) as asked:
        found = [first(asked, name, p, 2) for p in range(2)]
    assert found == [FirstUnread(LONG_AGO + s, "CreateTime") for s in (1, 2)]


def test_a_broker_that_stamps_records_itself_is_told(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1, message_timestamp_type="LogAppendTime")
    timed(topics, name, 0)
    with cluster(broker.bootstrap) as asked:
        found = first(asked, name, 0, 1)
    assert found is not None
    assert found.time is not None
    assert found.clock == "LogAppendTime"
    assert abs(time.time() - found.time) < 60


def test_a_marker_is_no_record(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    topics.produce_transaction(name, [(0, None, b"v", 1000 * LONG_AGO)], commit=True)
    with cluster(broker.bootstrap) as asked:
        assert first(asked, name, 1, 2) == FirstUnread(None)
        timed(topics, name, 7)
        assert first(asked, name, 1, 3) == FirstUnread(LONG_AGO + 7, "CreateTime")


def test_an_aborted_record_is_none_for_those_who_read_committed(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    topics.produce_transaction(name, [(0, None, b"v", 1000 * LONG_AGO)] * 3, commit=False)
    with cluster(broker.bootstrap) as asked:
        assert first(asked, name, 0, 4) == FirstUnread(LONG_AGO, "CreateTime")
        assert first(asked, name, 0, 4, "read_committed") == FirstUnread(None)
        topics.produce_transaction(name, [(0, None, b"v", 1000 * (LONG_AGO + 8))], commit=True)
        assert first(asked, name, 0, 6, "read_committed") == FirstUnread(LONG_AGO + 8, "CreateTime")


def test_what_compaction_removed_is_a_gap_to_the_next_record(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(
        1, cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=0,
        max_compaction_lag_ms=200, delete_retention_ms=0,
    )  # fmt: skip
    now = int(time.time()) - LONG_AGO
    timed(topics, name, now - 1000, now - 999, now - 998)  # one key; each, by its time, in a segment of its own
    with cluster(broker.bootstrap) as asked:

        def compacted() -> bool:
            timed(topics, name, now)  # rolls the segment
            found = first(asked, name, 0, 1_000_000)
            return found is not None and found.time is not None and found.time > LONG_AGO + now - 1000

        await_that(compacted, "the first record was compacted away")
        assert asked.retention([name]) == {name: None}
        assert topics.starts(name) == {0: 0}


def test_the_offset_at_a_time_and_the_retention(broker: Broker, topics: Topics, topic: Make) -> None:
    name, endless = topic(2, retention_ms=3_600_000), topic(1, retention_ms=-1)
    now = int(time.time()) - LONG_AGO
    timed(topics, name, now - 30, now - 20, now - 10)
    with cluster(broker.bootstrap) as asked:
        keys = [(name, 0), (name, 1)]
        moment = datetime.fromtimestamp(LONG_AGO + now - 15, UTC)
        assert asked.at_time(keys, moment) == {(name, 0): 2, (name, 1): None}
        assert asked.retention([name, endless]) == {name: timedelta(hours=1), endless: None}


T0 = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("seed", range(6))
def test_each_record_below_the_answer_is_older_whatever_the_order_of_times(
    broker: Broker, topics: Topics, topic: Callable[..., str], seed: int
) -> None:
    """In batches of any size, with an index of times that is as dense as it can be, and many equal times."""
    draw = random.Random(seed)
    name = topic(1, retention_ms=-1, index_interval_bytes=seed % 2 * 100)
    times: list[int] = []
    while len(times) < 300:
        batch = [T0 + draw.randint(0, 40) * (1000 if draw.random() < 0.05 else 1) for _ in range(draw.randint(1, 30))]
        topics.produce(name, [(0, b"k", b"v", time) for time in batch])
        times += batch
    cluster = Cluster(KafkaSettings(broker.bootstrap, {"bootstrap.servers": broker.bootstrap}))
    for asked in {*times, *(t + 1 for t in times), T0 - 1}:
        wanted = next((offset for offset, seen in enumerate(times) if seen >= asked), None)
        assert cluster.at_time([(name, 0)], datetime.fromtimestamp(asked / 1000, UTC)) == {(name, 0): wanted}, asked


def test_a_pattern_is_asked_of_the_cluster_and_internal_topics_are_none_of_it(
    broker: Broker, topics: Topics, topic: Make
) -> None:
    name, asked = topic(1), cluster(broker.bootstrap)
    long = f"{name}.{'-_.a1' * 50}"[:249]
    topics.create(long, 1)
    topics.create(f"{name}.not", 1)
    source = KafkaSource(pattern=rf"{name}(\..*)?", exclude=r".*\.not")
    try:
        assert asked.topics_of(source) == [name, long]
        assert all(not name.startswith("__") for name in asked.topics_of(KafkaSource(pattern=".*")))
        assert asked.existing([name, f"{name}.never"]) == {name}
        with pytest.raises(ConfigError, match=r"matches source\.kafka\.pattern"):
            asked.topics_of(KafkaSource(pattern=f"{name}.never"))
    finally:
        topics.delete(long)
        topics.delete(f"{name}.not")
