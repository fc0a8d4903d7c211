"""What Kafka answers when it is asked for a time: the first offset, in their order, whose record is not older."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sluice.local.kafka import Broker, Topics
from sluice.sources.kafka import Cluster, KafkaSettings

pytestmark = pytest.mark.kafka

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
    for time in {*times, *(t + 1 for t in times), T0 - 1}:
        wanted = next((offset for offset, seen in enumerate(times) if seen >= time), None)
        assert cluster.at_time([(name, 0)], datetime.fromtimestamp(time / 1000, UTC)) == {(name, 0): wanted}, time
