"""Positions that are copied into a consumer group, as Kafka's own tools see them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from tests.fixtures.runs import Sandbox, await_that

from sluice.launch import jars
from sluice.launch.programs import java
from sluice.local.kafka import Broker
from sluice.sources.base import CopyError
from sluice.sources.kafka import KafkaSettings
from sluice.sources.kafka.mirror import mirror

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


@contextlib.contextmanager
def joined(broker: Broker, group: str, topic: str) -> Iterator[KafkaConsumer]:
    """A live member of a group, with partitions assigned."""
    member = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)
    try:
        # one that joins before it has heard of a fresh topic is given nothing
        await_that(lambda: member.partitions_for_topic(topic), "the member knows the topic")
        member.subscribe([topic])
        await_that(lambda: member.poll(timeout_ms=1000) or member.assignment(), "the member has joined")
        yield member
    finally:
        member.close()


def test_kafka_group_shows_positions_and_their_batch(broker: Broker, topic: Callable[..., str]) -> None:
    name, group = topic(2), f"g-{uuid.uuid4().hex[:8]}"
    assert mirror(settings(broker), group, {name: {0: 5, 1: 0}}, "batch 3") == 2
    assert committed(broker, group) == {(name, 0): (5, "batch 3"), (name, 1): (0, "batch 3")}
    mirror(settings(broker), group, {name: {0: 4, 1: 0}}, "batch 4")  # whatever the position is, back too
    assert committed(broker, group)[name, 0] == (4, "batch 4")


def test_kafka_group_with_live_members_is_left_alone(broker: Broker, topic: Callable[..., str]) -> None:
    name, group = topic(1), f"g-{uuid.uuid4().hex[:8]}"
    with joined(broker, group, name) as member:
        with pytest.raises(CopyError, match=f"{name}"):
            mirror(settings(broker), group, {name: {0: 1}}, "")
        assert member.committed(TopicPartition(name, 0)) is None


def described(broker: Broker, group: str, class_path: list[Path]) -> dict[tuple[str, int], tuple[int, ...]]:
    """Position, end and lag of each partition, as ``kafka-consumer-groups --describe`` prints them."""
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    java_flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    asked = subprocess.run(
        [
            java(), *java_flags, "-cp", os.pathsep.join(map(str, class_path)), tool,
            "--bootstrap-server", broker.bootstrap, "--describe", "--group", group,
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line.split() for line in asked.stdout.splitlines() if line.strip() and "no active members" not in line]
    rows = [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]
    names = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    return {(row["TOPIC"], int(row["PARTITION"])): tuple(int(row[name]) for name in names) for row in rows}


@pytest.mark.long
@pytest.mark.spark
def test_kafka_group_of_a_run_has_its_positions_and_the_same_lag_by_kafkas_own_tool(
    sandbox: Sandbox, broker: Broker, kafka_jars: list[Path]
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    sandbox.configure(lag={"mirror_group": group})
    sandbox.feed(9)
    sandbox.run("r")
    found = committed(sandbox.broker, group)
    assert {key: offset for key, (offset, _) in found.items()} == {(sandbox.topic, 0): 5, (sandbox.topic, 1): 4}
    assert {note for _, note in found.values()} == {f"sluice {sandbox.name} epoch 1 batch 1 run r"}
    sandbox.feed(4)
    (ours,) = json.loads(sandbox.cli("lag", str(sandbox.file), "--json").stdout)
    shown = {(p["topic"], p["partition"]): (p["position"], p["end"], p["lag"]) for p in ours["partitions"]}
    assert shown == {(sandbox.topic, 0): (5, 7, 2), (sandbox.topic, 1): (4, 6, 2)}
    assert described(broker, group, [*kafka_jars, *jars.fetch("kafka-tools")]) == shown
    with joined(sandbox.broker, group, sandbox.topic):  # a member consumes under it: the run goes on without
        sandbox.run("s")
    assert committed(sandbox.broker, group) == found
    sandbox.assert_exact()
