"""A partition without a leader: one of two brokers is gone, and the other one still answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox, await_that

from sluice.errors import SluiceError
from sluice.local.kafka import Broker, Topics
from sluice.local.machine import free_port, java

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


@contextmanager
def second_node(first: Broker, folder: Path, kafka_jars: list[Path]) -> Iterator[None]:
    """A broker that is no controller, in the first one's cluster; killed at the end of the block."""
    port = free_port("127.0.0.1")
    settings = dict(line.split("=", 1) for line in (first.data_dir / "server.properties").read_text().splitlines())
    settings |= {
        "process.roles": "broker",
        "node.id": "2",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(folder / "data"),
    }
    folder.mkdir(exist_ok=True)
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    cluster = json.loads((first.data_dir / "broker.json").read_text())["cluster_id"]
    command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, kafka_jars))]
    with (folder / "log").open("ab") as log:
        format_it = ["kafka.tools.StorageTool", "format", "--ignore-formatted", f"--cluster-id={cluster}", "-c", file]
        subprocess.run([*command, *format_it], check=True, stdout=log, stderr=log)
        node = subprocess.Popen([*command, "kafka.Kafka", file], stdout=log, stderr=log, start_new_session=True)
    try:
        await_that(lambda: Topics(first.bootstrap).broker_count() == 2, "the second broker serves")
        yield
    finally:
        node.kill()
        node.wait()


def placed(first: Broker) -> bool:
    """Put a partition on each broker; False while one of them is not yet let in."""
    admin = KafkaAdminClient(bootstrap_servers=first.bootstrap)
    try:
        spec = {"assignments": {0: [1], 1: [2]}, "configs": {"retention.ms": "-1"}}
        admin.create_topics({"orders": spec}, wait_for_metadata=True)
    except TopicAlreadyExistsError:
        return True
    except KafkaError:  # the second broker is fenced still, or this client has not heard of it
        return False
    finally:
        admin.close()
    return True


def led(topics: Topics) -> bool:
    """Whether both partitions have a leader that answers."""
    try:
        return len(topics.ends("orders")) == 2
    except (KafkaError, SluiceError):
        return False


def test_without_a_leader_nothing_is_read_and_with_one_the_run_goes_on(
    spark: SparkSession, kafka_jars: list[Path], tmp_path: Path
) -> None:
    first = Broker(tmp_path / "first", port=0, jar_files=kafka_jars).start()
    try:
        with second_node(first, tmp_path / "second", kafka_jars):
            await_that(lambda: placed(first), "the second broker takes partitions")
            topics = Topics(first.bootstrap)
            sandbox = KeptSandbox(tmp_path / "home", first, topics, "orders", spark=spark)
            sandbox.feed(8, bad_every=4)
            sandbox.run("before")
            sandbox.feed(8, bad_every=4)
        before = sandbox.sink()
        refused = sandbox.run("without", expect=20)
        assert "orders" in refused.message
        assert sandbox.sink() == before
        (lag,) = json.loads(sandbox.cli("lag", str(sandbox.file), "--json").stdout)
        assert lag["verdict"] == "UNKNOWN"
        with second_node(first, tmp_path / "second", kafka_jars):
            await_that(lambda: led(topics), "both partitions have leaders again")
            sandbox.run("without")
            sandbox.assert_exact()
    finally:
        first.kill()
