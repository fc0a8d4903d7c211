"""Copying positions into a consumer group, as Kafka's own tools then see them."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from tests.fixtures.runs import Sandbox

from sluice.kafka import KafkaSettings
from sluice.kafka.mirror import MirrorError, mirror
from sluice.local.kafka import Broker

pytestmark = pytest.mark.kafka


def settings(broker: Broker) -> KafkaSettings:
    return KafkaSettings(broker.bootstrap, {"bootstrap.servers": broker.bootstrap})


def committed(broker: Broker, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        found = admin.list_group_offsets({group: None})[group]
        return {(tp.topic, tp.partition): (at.offset, at.metadata) for tp, at in found.items()}
    finally:
        admin.close()


def test_a_group_shows_the_positions_and_where_they_come_from(broker: Broker, topic: Callable[..., str]) -> None:
    name, group = topic(2), f"g-{uuid.uuid4().hex[:8]}"
    assert mirror(settings(broker), group, {name: {0: 5, 1: 0}}, "batch 3") == 2
    assert committed(broker, group) == {(name, 0): (5, "batch 3"), (name, 1): (0, "batch 3")}
    mirror(settings(broker), group, {name: {0: 4, 1: 0}}, "batch 4")  # whatever the position is, back too
    assert committed(broker, group)[name, 0] == (4, "batch 4")


def test_a_group_that_somebody_consumes_under_is_left_alone_and_said(broker: Broker, topic: Callable[..., str]) -> None:
    name, group = topic(1), f"g-{uuid.uuid4().hex[:8]}"
    member = KafkaConsumer(name, bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)
    try:
        while not member.assignment():
            member.poll(timeout_ms=200)
        with pytest.raises(MirrorError, match=f"{name}"):
            mirror(settings(broker), group, {name: {0: 1}}, "")
        assert member.committed(TopicPartition(name, 0)) is None
    finally:
        member.close()


@pytest.mark.spark
def test_a_run_copies_its_positions_and_does_not_fail_when_it_cannot(sandbox: Sandbox) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    sandbox.configure(lag={"mirror_group": group})
    sandbox.feed(5)
    sandbox.run("r")
    found = committed(sandbox.broker, group)
    assert {key: offset for key, (offset, _) in found.items()} == {(sandbox.topic, 0): 3, (sandbox.topic, 1): 2}
    assert {note for _, note in found.values()} == {f"sluice {sandbox.name} epoch 1 batch 0 run r"}

    member = KafkaConsumer(sandbox.topic, bootstrap_servers=sandbox.broker.bootstrap, group_id=group)
    try:
        while not member.assignment():
            member.poll(timeout_ms=200)
        sandbox.feed(2)
        assert "could not be copied" in sandbox.run("s").stderr
    finally:
        member.close()
    sandbox.assert_exact()
