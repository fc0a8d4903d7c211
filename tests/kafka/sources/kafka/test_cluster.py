"""Asking a real broker for its offsets: exact answers, typed errors, a deadline."""

from __future__ import annotations

import gc
import os
import random
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fixtures.node import SecondNode
from tests.fixtures.runs import await_that

from sluice.errors import ConfigError, SluiceError, SourceUnreachableError
from sluice.local.kafka import Broker, Topics
from sluice.sources.kafka import Cluster, KafkaSettings
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.state import FirstUnread, PartitionState, TopicState, ends, starts

pytestmark = pytest.mark.kafka

Make = Callable[..., str]


def cluster(bootstrap: str, timeout: float = 20) -> Cluster:
    return Cluster(KafkaSettings(bootstrap, {"bootstrap.servers": bootstrap}), timeout=timeout)


def ends_of(states: Iterable[TopicState]) -> dict[tuple[str, int], int]:
    return {(name, partition): end for name, parts in ends(states).items() for partition, end in parts.items()}


def fill(topics: Topics, name: str, *counts: int) -> None:
    topics.produce(name, [(p, None, b"v") for p, count in enumerate(counts) for _ in range(count)])


def test_kafka_snapshot_is_exact_for_every_topic_and_partition(broker: Broker, topics: Topics, topic: Make) -> None:
    one, two = sorted([topic(3), topic(1)])
    counts = {name: range(len(topics.ends(name))) for name in (one, two)}
    for name, numbers in counts.items():
        fill(topics, name, *numbers)
    asked = cluster(broker.bootstrap)
    states = asked.snapshot([two, one])
    assert [s.topic for s in states] == [one, two]
    assert ends(states) == {name: dict(enumerate(numbers)) for name, numbers in counts.items()}
    assert starts(states) == {name: dict.fromkeys(range(len(numbers)), 0) for name, numbers in counts.items()}
    assert len({s.topic_id for s in states} - {""}) == 2
    (of_cluster,) = {s.topic_id.rpartition("/")[0] for s in states}
    assert of_cluster, "an id begins with that of the cluster"


def test_kafka_open_transaction_holds_the_end_back_for_read_committed(
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


@pytest.mark.parametrize("bootstrap", ["no-such-host.invalid:9092", "127.0.0.1:1", "127.0.0.1", "127.0.0.1:port"])
def test_kafka_wrong_address_is_unreachable_and_one_of_several_is_enough(
    broker: Broker, topics: Topics, topic: Make, bootstrap: str
) -> None:
    with pytest.raises(SourceUnreachableError):
        cluster(bootstrap, timeout=5).snapshot(["t"])
    if bootstrap.endswith(":1"):
        assert cluster(f"{bootstrap},{broker.bootstrap}").snapshot([topic(1)])


def test_kafka_missing_topic_is_a_mistake_and_is_not_created(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    with cluster(broker.bootstrap) as asked:
        mine, never = sorted(asked.look([name, "zz-never-made"]), key=lambda s: s.topic)
        assert mine.partitions == {0: PartitionState(0, 0)}
        assert isinstance(never.error, ConfigError)
        with pytest.raises(ConfigError, match="'zz-never-made'"):
            asked.snapshot([name, "zz-never-made"])
        with pytest.raises(ConfigError, match="no name that Kafka has"):
            asked.snapshot(["no topic"])
    assert not topics.exists("zz-never-made")


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """Clients that other tests forgot, and that a collection would end, are none of those that are counted here."""
    gc.collect()


def ours() -> set[threading.Thread]:
    """Return the threads that clients of Kafka keep here."""
    return {t for t in threading.enumerate() if "kafka" in t.name}


def test_kafka_answers_twenty_questions_by_one_client(broker: Broker, topics: Topics, topic: Make) -> None:
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
    for _ in range(20):  # never closed
        cluster(broker.bootstrap).snapshot([name])
    gc.collect()
    await_that(lambda: ours() <= before, "the threads are gone")


def test_kafka_dead_broker_is_unreachable_leaves_no_thread_and_recovers(
    broker: Broker, topics: Topics, topic: Make
) -> None:
    name, before = topic(1), set(threading.enumerate())
    kept = cluster(broker.bootstrap, timeout=3)
    kept.look([name])
    broker.kill()
    try:
        for asked in [kept] * 5 + [cluster(broker.bootstrap, timeout=3) for _ in range(5)]:
            with pytest.raises(SourceUnreachableError, match=broker.bootstrap):
                asked.look([name])
        await_that(lambda: set(threading.enumerate()) <= before, "the threads are gone")
    finally:
        broker.start()
    assert kept.look([name])[0].partitions == {0: PartitionState(0, 0)}, "it recovers by itself"
    kept.close()


def test_kafka_leader_epoch_tells_a_log_that_lost_its_end(
    broker: Broker, topics: Topics, topic: Make, tmp_path: Path
) -> None:
    name, asked = topic(1), cluster(broker.bootstrap)
    log = next(broker.data_dir.rglob(f"{name}-0"))
    fill(topics, name, 5)
    broker.kill()
    shutil.copytree(log, tmp_path / "earlier")
    broker.start()
    fill(topics, name, 5)
    (before,) = asked.snapshot([name])
    seen = {(name, 0): before.partitions[0].epoch or 0}
    assert asked.ends_of_epochs(seen) == ends_of([before]) == {(name, 0): 10}
    broker.kill()
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "earlier", log)
    broker.start()
    fill(topics, name, 8)
    (now,) = asked.snapshot([name])
    assert (now.topic_id, ends_of([now])) == (before.topic_id, {(name, 0): 13})
    assert asked.ends_of_epochs(seen) == {(name, 0): 5}
    assert asked.ends_of_epochs({(name, 0): now.partitions[0].epoch or 0}) == {(name, 0): 13}
    asked.close()


def test_kafka_silent_listener_leaves_no_thread() -> None:
    """kafka-python alone would leave a thread for each client that cannot bootstrap."""
    before = set(threading.enumerate())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(SourceUnreachableError):
                cluster(f"127.0.0.1:{listener.getsockname()[1]}", timeout=0.3).look(["t"])
            assert time.monotonic() - begun < 2
        await_that(lambda: set(threading.enumerate()) <= before, "the threads are gone")


def test_kafka_frozen_broker_is_given_up_in_time_and_recovers(broker: Broker, topics: Topics, topic: Make) -> None:
    name, before = topic(1), set(threading.enumerate())
    with cluster(broker.bootstrap, timeout=1) as asked:
        asked.look([name])
        broker.pause()
        try:
            for _ in range(2):
                begun = time.monotonic()
                with pytest.raises(SourceUnreachableError):
                    asked.look([name])
                assert time.monotonic() - begun < 2.5
        finally:
            broker.resume()
        await_that(lambda: getattr(said_of(asked, name), "partitions", None), "it recovers by itself")
    await_that(lambda: set(threading.enumerate()) <= before, "the threads are gone")


def said_of(asked: Cluster, name: str) -> TopicState | SluiceError:
    try:
        return asked.look([name])[0]
    except SluiceError as error:
        return error


def test_kafka_client_is_shared_by_many_threads_also_when_some_close_it(
    broker: Broker, topics: Topics, topic: Make
) -> None:
    names, before = [topic(2), topic(3)], ours()
    with cluster(broker.bootstrap) as asked, ThreadPoolExecutor(8, thread_name_prefix="asks") as pool:
        answers = list(pool.map(lambda _: asked.look(names), range(100)))
        assert len(ours() - before) == 1
        assert all(answer == answers[0] for answer in answers)
        closing = pool.map(lambda n: asked.close() if n % 10 == 0 else asked.look(names), range(100))
        assert all(answer is None or answer == answers[0] for answer in closing)


def test_kafka_client_of_a_forked_child_is_its_own(broker: Broker, topics: Topics, topic: Make) -> None:
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


@pytest.mark.long  # two brokers of its own
def test_kafka_partition_without_a_leader_is_unknown_and_others_answer(second_node: SecondNode) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    second_node.create(name, {0: 1, 1: 2})
    with cluster(second_node.first.bootstrap, timeout=3) as asked:
        (state,) = asked.look([name])
        assert set(state.partitions) == {0, 1}
        second_node.freeze()
        begun = time.monotonic()
        (state,) = asked.look([name])
        assert time.monotonic() - begun < 5
        assert (set(state.partitions), set(state.errors)) == ({0}, {1}), "a leader that is silent"
        second_node.kill()
        await_that(lambda: "has no leader" in str(said_of(asked, name)), "the leader is gone")
        (state,) = asked.look([name])
        assert (set(state.partitions), set(state.errors)) == ({0}, {1})
        assert isinstance(state.errors[1], SourceUnreachableError)
        with pytest.raises(SourceUnreachableError, match=f"{name}-1"):
            asked.snapshot([name])


LONG_AGO = 1_700_000_000


def first(
    asked: Cluster, name: str, position: int, end: int, isolation: str = "read_uncommitted"
) -> FirstUnread | None:
    key = (name, 0)
    return asked.first_unread({key: position}, {key: end}, isolation_level=isolation).get(key)


def timed(topics: Topics, name: str, *seconds: int, **config: object) -> None:
    topics.produce(name, [(0, b"k", b"v", 1000 * (LONG_AGO + s)) for s in seconds], **config)


def test_kafka_first_unread_record_offset_at_a_time_and_retention(broker: Broker, topics: Topics, topic: Make) -> None:
    name, stamped = topic(2, retention_ms=3_600_000), topic(1, message_timestamp_type="LogAppendTime", retention_ms=-1)
    now = int(time.time()) - LONG_AGO
    timed(topics, name, now - 20, now - 30, now - 10)  # out of the order of time, and all in one batch
    timed(topics, stamped, 0)
    with cluster(broker.bootstrap) as asked:
        assert [first(asked, name, p, 3) for p in range(3)] == [
            FirstUnread(LONG_AGO + now - s, "CreateTime") for s in (20, 30, 10)
        ]  # fmt: skip
        found = first(asked, stamped, 0, 1)
        assert found.clock == "LogAppendTime"
        assert abs(time.time() - (found.time or 0)) < 60
        moment = datetime.fromtimestamp(LONG_AGO + now - 15, UTC)
        assert asked.at_time([(name, 0), (name, 1)], moment) == {(name, 0): 2, (name, 1): None}
        assert asked.retention([name, stamped]) == {name: timedelta(hours=1), stamped: None}


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_kafka_first_unread_record_of_a_large_batch(
    broker: Broker, topics: Topics, topic: Make, codec: str | None
) -> None:
    name = topic(1)
    records = [(0, None, os.urandom(200_000), 1000 * (LONG_AGO + s)) for s in (1, 2)]
    topics.produce(name, records, compression_type=codec, max_request_size=1_000_000, batch_size=900_000)
    with cluster(broker.bootstrap) as asked:
        found = [first(asked, name, p, 2) for p in range(2)]
    assert found == [FirstUnread(LONG_AGO + s, "CreateTime") for s in (1, 2)]


def test_kafka_markers_and_aborted_records_are_no_records(broker: Broker, topics: Topics, topic: Make) -> None:
    name = topic(1)
    topics.produce_transaction(name, [(0, None, b"v", 1000 * LONG_AGO)] * 3, commit=False)
    with cluster(broker.bootstrap) as asked:
        assert first(asked, name, 0, 4) == FirstUnread(LONG_AGO, "CreateTime")
        assert first(asked, name, 3, 4) == FirstUnread(None), "a marker"
        assert first(asked, name, 0, 4, "read_committed") == FirstUnread(None)
        topics.produce_transaction(name, [(0, None, b"v", 1000 * (LONG_AGO + 8))], commit=True)
        assert first(asked, name, 0, 6, "read_committed") == FirstUnread(LONG_AGO + 8, "CreateTime")
        assert first(asked, name, 3, 6) == FirstUnread(LONG_AGO + 8, "CreateTime")


def test_kafka_compacted_offsets_are_a_gap_to_the_next_record(broker: Broker, topics: Topics, topic: Make) -> None:
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


T0 = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("seed", range(2))
def test_kafka_offset_at_a_time_with_times_in_any_order(
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
    there = cluster(broker.bootstrap)
    for asked in {*times, *(t + 1 for t in times), T0 - 1}:
        wanted = next((offset for offset, seen in enumerate(times) if seen >= asked), None)
        assert there.at_time([(name, 0)], datetime.fromtimestamp(asked / 1000, UTC)) == {(name, 0): wanted}, asked


def test_kafka_pattern_of_topics_leaves_out_internal_topics(broker: Broker, topics: Topics, topic: Make) -> None:
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
