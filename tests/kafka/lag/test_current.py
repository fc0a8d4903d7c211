"""The lag of a pipeline against a real broker: what it is, since when, and what is amiss."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fixtures.runs import await_that
from tests.kafka.conftest import Line, fill

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.lag import Backlog, Limits, Status
from sluice.lag.current import backlog, waiting
from sluice.local.kafka import Broker, Topics
from sluice.pipeline import Pipeline

pytestmark = pytest.mark.kafka


def test_the_life_of_a_pipeline(line: Callable[..., Line], topics: Topics) -> None:
    p = line(2)
    assert (p.look().verdict, p.look().records) == (Status.NEW, 0)
    fill(topics, p, 5, 3)
    new = p.look()
    assert (new.verdict, new.records, new.worth_a_run) == (Status.NEW, 8, True)
    p.run("r1")
    done = p.look()
    assert (done.verdict, done.records, done.age, done.over) == (Status.OK, 0, 0.0, False)
    fill(topics, p, 2, aged=100)
    behind = p.look()
    assert [part.status for part in behind.partitions] == [Status.BACKLOG, Status.OK]
    assert behind.records == 2
    assert behind.partitions[0].age == pytest.approx(100, abs=30)
    assert behind.partitions[1].age == 0.0
    topics.add_partitions(p.topic, 3)
    assert [part.status for part in p.look().partitions] == [Status.BACKLOG, Status.OK, Status.NEW]


def test_deleted_records_are_lost_and_counted(line: Callable[..., Line], topics: Topics) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("r1")
    fill(topics, p, 5)
    topics.delete_records(p.topic, {0: 8})
    found = p.look()
    assert (found.verdict, found.lost, found.records, found.needs_a_run) == (Status.LOST, 3, 2, True)


def test_a_topic_that_was_made_anew_is_recreated_even_when_it_is_longer(
    line: Callable[..., Line], topics: Topics
) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("r1")
    topics.recreate(p.topic, 1)
    shorter = p.look()
    assert (shorter.verdict, shorter.records, shorter.partitions[0].beyond) == (Status.RECREATED, None, 5)
    fill(topics, p, 50)
    longer = p.look()
    assert (longer.verdict, longer.records) == (Status.RECREATED, None)


def test_a_topic_that_was_deleted_is_unknown_and_a_mistake(line: Callable[..., Line], topics: Topics) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("r1")
    topics.delete(p.topic)
    found = p.look()
    assert (found.verdict, found.records, found.worth_a_run) == (Status.UNKNOWN, None, False)
    assert isinstance(found.error, ConfigError)


def test_a_broker_that_is_down_is_unknown_starts_nothing_and_recovers(
    line: Callable[..., Line], topics: Topics, broker: Broker
) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("r1", {0: 2})
    broker.kill()
    down = p.look(limits=Limits(0))
    assert (down.verdict, down.records, down.over, down.worth_a_run) == (Status.UNKNOWN, None, False, False)
    assert isinstance(down.error, SourceUnreachableError)
    assert broker.bootstrap in str(down.error)
    broker.start()
    assert (p.look().verdict, p.look().records) == (Status.BACKLOG, 3)


def test_three_failed_runs_at_one_position_are_stuck_until_one_gets_through(
    line: Callable[..., Line], topics: Topics
) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("r1", {0: 2})
    for n in range(3):
        assert p.look().verdict is Status.BACKLOG
        p.run(f"bad{n}", fails=True)
    assert p.look().verdict is Status.STUCK
    p.run("r2")
    fill(topics, p, 1)
    assert p.look().verdict is Status.BACKLOG


def test_runs_that_find_more_each_time_are_growing(line: Callable[..., Line], topics: Topics) -> None:
    p = line()
    for n in (2, 4, 6):
        fill(topics, p, n)
        p.run(f"r{n}")
    fill(topics, p, 7)
    assert p.look(limits=Limits(5)).verdict is Status.GROWING
    assert p.look(limits=Limits(7)).verdict is Status.BACKLOG


def test_a_checkpoint_taken_back_is_rewound(line: Callable[..., Line], topics: Topics) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("r1", {0: 2})
    p.run("r2", {0: 5})
    root = Path(p.home.checkpoint("line", 1))
    (root / "commits" / "1").unlink()
    assert p.look().verdict is Status.BACKLOG, "a batch between the ledger and Spark's commit"
    (root / "offsets" / "1").unlink()
    assert p.look().verdict is Status.REWOUND


def test_a_pipeline_that_a_verdict_holds_starts_no_run_but_for_its_log(
    line: Callable[..., Line], topics: Topics
) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("bad", {0: 2})
    p.ledger.judged(None, "line", "bad", verdict="failed", judgement={})
    keys = p.spec().model_dump(include={"name", "source", "decode", "sink"}, by_alias=True, exclude_unset=True)

    def look(recovery: str) -> Backlog:
        spec = Pipeline.model_validate({**keys, "recovery": recovery, "quality": {"on_failed": "hold"}})
        return backlog(spec, p.cluster, home=p.home, ledger=p.ledger)

    held = look("replay")
    assert (held.held, held.over, held.worth_a_run) == ("bad", True, False)
    assert (look("wal").held, look("wal").worth_a_run) == (None, True)


def test_a_run_at_work_is_named(line: Callable[..., Line], topics: Topics) -> None:
    p = line()
    fill(topics, p, 5)
    with p.ledger.acquire("line", "busy"):
        found = p.look()
        assert (found.running, found.over, found.worth_a_run) == ("busy", True, False)
    assert p.look().running is None


def test_a_transaction_leaves_no_lag_behind_and_an_open_one_is_pending(
    line: Callable[..., Line], topics: Topics
) -> None:
    p = line(source={"isolation_level": "read_committed"})
    topics.produce_transaction(p.topic, [(0, None, b"v")] * 2, commit=True)
    assert p.look().records == 3
    p.run("r1")
    assert (p.look().verdict, p.look().records) == (Status.OK, 0)
    with topics.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(p.topic, value=b"v", partition=0).get(30)
        during = p.look()
        assert (during.verdict, during.records, during.partitions[0].pending) == (Status.OK, 0, 1)
        producer.commit_transaction()
    await_that(lambda: p.look().records == 2, "the transaction's end is seen")
    assert p.look().partitions[0].pending == 0


def test_only_a_marker_waits_and_that_is_no_age(line: Callable[..., Line], topics: Topics) -> None:
    p = line()
    topics.produce_transaction(p.topic, [(0, None, b"v", 1_700_000_000_000)], commit=True)
    assert p.look().records == 2
    p.run("r1", {0: 1})
    found = p.look(limits=Limits(10, timedelta(seconds=1)))
    assert (found.records, found.age, found.over) == (1, 0.0, False)


def test_limits_of_age_and_share(line: Callable[..., Line], topics: Topics) -> None:
    p = line(retention_ms=1_000_000)
    fill(topics, p, 1, aged=250)
    found = p.look(limits=Limits(None, timedelta(seconds=100)))
    assert found.over
    assert found.share == pytest.approx(0.25, abs=0.05)
    assert not p.look(limits=Limits(None, timedelta(seconds=900))).over
    assert p.look(limits=Limits(None, None, 0.2)).over
    assert not p.look(limits=Limits(None, None, 0.9)).over
    assert not p.look(limits=Limits(5, timedelta(seconds=100), 0.2, "all")).over
    without = p.look(ages=False, limits=Limits(None, timedelta(seconds=100)))
    assert (without.records, without.age, without.share, without.over) == (1, None, None, False)


def test_the_numbers_agree_with_an_independent_consumer(
    line: Callable[..., Line], topics: Topics, broker: Broker
) -> None:
    from kafka import KafkaConsumer, TopicPartition

    p = line(3)
    fill(topics, p, 10, 20, 30)
    p.run("r1", {0: 4, 1: 20, 2: 7})
    topics.delete_records(p.topic, {0: 2, 2: 9})
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    parts = [TopicPartition(p.topic, n) for n in range(3)]
    consumer.assign(parts)
    for part in parts:
        consumer.seek(part, p.position[part.partition])
    read = dict.fromkeys(range(3), 0)
    ends = consumer.end_offsets(parts)
    deadline = time.monotonic() + 60
    while any(consumer.position(part) < ends[part] for part in parts) and time.monotonic() < deadline:
        for part, records in consumer.poll(500).items():
            read[part.partition] += len(records)
    consumer.close()
    assert {part.partition: part.records for part in p.look().partitions} == read == {0: 6, 1: 0, 2: 21}


def test_a_hint_is_a_number_or_nothing(line: Callable[..., Line], topics: Topics, broker: Broker) -> None:
    from sluice.connections import Connection

    p = line()
    fill(topics, p, 5)
    there = Connection("kafka_default", "kafka", extra={"bootstrap.servers": broker.bootstrap})
    nowhere = Connection("kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    epoch = p.ledger.epoch("line")
    assert waiting(p.spec(), there, home=p.home, epoch=epoch) == 5
    assert waiting(p.spec(), nowhere, home=p.home, epoch=epoch) is None


def test_an_hour_of_idling_raises_no_false_alarm(line: Callable[..., Line], topics: Topics) -> None:
    """A look for each minute of an hour after a run, with nothing to read and the tightest limits."""
    p = line(retention_ms=60_000)
    fill(topics, p, 5)
    p.run("r1")
    now = datetime.now(UTC)
    for minute in range(60):
        found = p.look(now=now + timedelta(minutes=minute), limits=Limits(0, timedelta(seconds=1), 0.01))
        assert (found.verdict, found.over, found.worth_a_run) == (Status.OK, False, False)
