"""The lag of a pipeline against a real broker, with runs that are played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fixtures.runs import await_that, consume
from tests.kafka.conftest import Line, fill

from sluice.connections import Connection
from sluice.errors import ConfigError, SourceUnreachableError
from sluice.lag import Backlog, Limits, Status
from sluice.lag.current import backlog, waiting
from sluice.ledger.events import Judged
from sluice.local.kafka import Broker, Topics
from sluice.pipeline import Pipeline

pytestmark = pytest.mark.kafka


def consumed(broker: Broker, line: Line) -> dict[int, int]:
    """Count the records that an independent consumer reads behind the pipeline's position."""
    return dict(Counter(r.partition for r in consume(broker, line.topic) if r.offset >= line.position[r.partition]))


def test_lag_is_the_number_of_records_that_a_consumer_reads(
    line: Callable[..., Line], topics: Topics, broker: Broker
) -> None:
    p = line(3, retention_ms=1_000_000)
    assert (p.look().verdict, p.look().records) == (Status.NEW, 0)
    fill(topics, p, 10, 20, 30)
    new = p.look()
    assert (new.verdict, new.records, new.worth_a_run) == (Status.NEW, 60, True)
    p.run("r1", {0: 4, 1: 20, 2: 7})
    topics.delete_records(p.topic, {0: 2, 2: 9})
    found = p.look()
    assert {part.partition: part.records for part in found.partitions} == {0: 6, 1: 0, 2: 21}
    assert consumed(broker, p) == {0: 6, 2: 21}
    assert (found.verdict, found.lost, found.needs_a_run) == (Status.LOST, 2, True)
    p.run("r2")
    done = p.look()
    assert (done.verdict, done.records, done.age, done.over) == (Status.OK, 0, 0.0, False)
    fill(topics, p, 2, aged=100)
    topics.add_partitions(p.topic, 4)
    behind = p.look()
    assert [part.status for part in behind.partitions] == [Status.BACKLOG, Status.OK, Status.OK, Status.NEW]
    assert behind.records == 2
    assert (behind.partitions[0].age, behind.share) == (pytest.approx(100, abs=30), pytest.approx(0.1, abs=0.05))
    assert behind.partitions[1].age == 0.0
    without = p.look(ages=False).partitions[0]
    assert (without.records, without.age) == (2, None)


def test_lag_of_a_recreated_topic_is_none_and_a_deleted_one_is_a_mistake(
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
    assert (longer.verdict, longer.records) == (Status.RECREATED, None), "only its id differs"
    topics.delete(p.topic)
    found = p.look()
    assert (found.verdict, found.records, found.worth_a_run) == (Status.UNKNOWN, None, False)
    assert isinstance(found.error, ConfigError)


def test_lag_of_a_dead_broker_is_unknown_and_the_same_cluster_recovers(
    line: Callable[..., Line], topics: Topics, broker: Broker
) -> None:
    p = line()
    fill(topics, p, 5)
    p.run("r1", {0: 2})
    there, nowhere = (
        Connection("kafka_default", "kafka", extra={"bootstrap.servers": where})
        for where in (broker.bootstrap, "127.0.0.1:1")
    )
    epoch = p.ledger.offsets.epoch("line")
    assert waiting(p.spec(), lambda _: there, home=p.home, epoch=epoch) == 3
    assert waiting(p.spec(), lambda _: nowhere, home=p.home, epoch=epoch) is None
    broker.kill()
    down = p.look(limits=Limits(0))
    assert (down.verdict, down.records, down.over, down.worth_a_run) == (Status.UNKNOWN, None, False, False)
    assert isinstance(down.error, SourceUnreachableError)
    assert broker.bootstrap in str(down.error)
    broker.start()
    assert (p.look().verdict, p.look().records) == (Status.BACKLOG, 3)


def test_lag_status_of_failed_growing_held_and_rewound_runs(line: Callable[..., Line], topics: Topics) -> None:
    p = line()
    for n in (2, 4, 6):
        fill(topics, p, n)
        p.run(f"r{n}")
    fill(topics, p, 7)
    assert p.look(limits=Limits(5)).verdict is Status.GROWING
    assert p.look(limits=Limits(7)).verdict is Status.BACKLOG
    for n in range(3):
        assert p.look(limits=Limits(7)).verdict is Status.BACKLOG
        p.run(f"bad{n}", fails=True)
    assert p.look().verdict is Status.STUCK
    p.run("judged", {0: 13})
    p.ledger.decide("line", "judged", Judged(verdict="failed", judgement={}))
    keys = p.spec().model_dump(include={"name", "source", "decode", "sink"}, by_alias=True, exclude_unset=True)

    def look(recovery: str) -> Backlog:
        spec = Pipeline.model_validate({**keys, "recovery": recovery, "quality": {"on_failed": "hold"}})
        return backlog(spec, p.cluster, home=p.home, ledger=p.ledger)

    held = look("replay")
    assert (held.held, held.over, held.worth_a_run) == ("judged", True, False)
    assert (look("wal").held, look("wal").worth_a_run) == (None, True), "its log may grow"
    with p.ledger.acquire("line", "busy"):
        found = p.look()
        assert (found.running, found.over, found.worth_a_run) == ("busy", True, False)
    assert p.look().running is None
    root = Path(p.home.checkpoint("line", 1))
    (root / "commits" / str(p.batch)).unlink()
    assert p.look(limits=Limits(7)).verdict is Status.BACKLOG, "a batch between the ledger and Spark's commit"
    (root / "offsets" / str(p.batch)).unlink()
    assert p.look().verdict is Status.REWOUND


def test_lag_of_an_open_transaction_is_pending_and_a_marker_has_no_age(
    line: Callable[..., Line], topics: Topics
) -> None:
    p = line(source={"isolation_level": "read_committed"})
    topics.produce_transaction(p.topic, [(0, None, b"v", 1_700_000_000_000)] * 2, commit=True)
    assert p.look().records == 3
    p.run("r1", {0: 2})
    marker = p.look(limits=Limits(10, timedelta(seconds=1)))
    assert (marker.records, marker.age, marker.over) == (1, 0.0, False)
    p.run("r2")
    with topics.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(p.topic, value=b"v", partition=0).get(30)
        during = p.look()
        assert (during.verdict, during.records, during.partitions[0].pending) == (Status.OK, 0, 1)
        producer.commit_transaction()
    await_that(lambda: p.look().records == 2, "the transaction's end is seen")
    assert p.look().partitions[0].pending == 0


@pytest.mark.parametrize("others", [1, 20])
def test_lag_behind_a_record_from_the_future_has_the_age_of_others(
    line: Callable[..., Line], topics: Topics, others: int
) -> None:
    p = line()
    fill(topics, p, 1, aged=-3000)  # a broker takes no more than an hour, by default
    fill(topics, p, others, aged=7200)
    found = p.look(limits=Limits(None, timedelta(hours=1)))
    assert (found.verdict, found.over) == (Status.CLOCK, True)
    assert found.age == pytest.approx(7200, abs=30)
