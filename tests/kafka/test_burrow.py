"""Debian's Burrow beside ``sluice lag``: the same numbers, and another verdict between two runs.

Burrow 1.2.1 asks for ZooKeeper and cannot decode what Kafka 4.3 writes into ``__consumer_offsets``, so the broker here
is a Kafka 3.9, which both of them can read, and which brings the ZooKeeper.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox, await_that

from sluice.launch import jars
from sluice.launch.programs import java
from sluice.local.kafka import Broker, Topics
from sluice.local.machine import free_port

PROGRAM = shutil.which("Burrow")

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.skipif(PROGRAM is None, reason="no Burrow here: apt-get install burrow"),
]

GROUP = "sluice-orders"

CONFIG = """\
[general]
pidfile = "{folder}/burrow.pid"
[logging]
level = "info"
[zookeeper]
servers = ["127.0.0.1:{zookeeper}"]
timeout = 6
root-path = "/burrow"
[client-profile.local]
client-id = "burrow"
kafka-version = "2.0.0"
[cluster.local]
class-name = "kafka"
servers = ["{bootstrap}"]
client-profile = "local"
topic-refresh = 5
offset-refresh = 1
[consumer.local]
class-name = "kafka"
cluster = "local"
servers = ["{bootstrap}"]
client-profile = "local"
group-whitelist = ""
[httpserver.default]
address = "127.0.0.1:{port}"
[storage.default]
class-name = "inmemory"
intervals = 10
min-distance = 1
"""


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    """A program in the background for as long as the block lasts."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def asked(url: str) -> dict[str, Any]:
    """Return Burrow's status of the group."""
    try:
        answer = httpx.get(f"{url}/v3/kafka/local/consumer/{GROUP}/lag").json()
    except httpx.TransportError:  # not up yet
        return {}
    return {} if answer["error"] else dict(answer["status"])


def lags(url: str) -> dict[int, tuple[int, int]]:
    rows = asked(url).get("partitions") or []
    return {row["partition"]: (row["end"]["offset"], row["current_lag"]) for row in rows if row["end"]}


def serves(port: int) -> bool:
    """Whether a ZooKeeper answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            link.sendall(b"srvr")
            return b"Mode: standalone" in link.recv(4096)
    except OSError:
        return False


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A Kafka 3.9."""
    broker = Broker(tmp_path / "kafka", port=0, jar_files=jars.fetch("kafka-3.9")).start()
    yield broker
    broker.kill()


@contextmanager
def watching(broker: Broker, tmp_path: Path) -> Iterator[str]:
    """A Burrow and its ZooKeeper. It ends at once where no group has ever committed."""
    zookeeper, port = free_port("127.0.0.1"), free_port("127.0.0.1")
    settings = tmp_path / "zookeeper.properties"
    settings.write_text(
        f"dataDir={tmp_path}/zookeeper\nclientPort={zookeeper}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        "4lw.commands.whitelist=srvr\n"
    )
    (tmp_path / "burrow").mkdir()
    config = CONFIG.format(folder=tmp_path, zookeeper=zookeeper, bootstrap=broker.bootstrap, port=port)
    (tmp_path / "burrow" / "burrow.toml").write_text(config)
    class_path = os.pathsep.join(map(str, jars.fetch("kafka-3.9")))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    with ExitStack() as stack:
        command = [java(), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, main]
        stack.enter_context(running([*command, str(settings)], tmp_path / "zookeeper.log"))
        await_that(lambda: serves(zookeeper), "ZooKeeper serves: it listens earlier, and Burrow asks once")
        stack.enter_context(running([str(PROGRAM), "--config-dir", str(tmp_path / "burrow")], tmp_path / "burrow.log"))
        yield f"http://127.0.0.1:{port}"


@pytest.mark.long
def test_burrow_has_the_same_numbers_and_calls_the_time_between_two_runs_a_stop(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topics = Topics(broker.bootstrap)
    topics.create("orders", 2, {"retention.ms": "-1"})
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, "orders", spark=spark)
    sandbox.configure(lag={"mirror_group": GROUP, "max_records": 100})
    sandbox.feed(6)
    sandbox.run("r0")
    with watching(broker, tmp_path) as burrow:
        began = time.monotonic()
        for number in range(1, 4):  # commits for its window; the last records are left unread
            sandbox.feed(6)
            sandbox.run(f"r{number}")
            seen = {0: (3 * number + 3, 0), 1: (3 * number + 3, 0)}
            await_that(lambda seen=seen: lags(burrow) == seen, f"Burrow saw commit {number}")  # type: ignore[misc]
        window = time.monotonic() - began
        sandbox.feed(3)

        shown = {part["partition"]: (part["position"], part["lag"]) for part in lag(sandbox)["partitions"]}
        assert shown == {0: (12, 2), 1: (12, 1)}
        await_that(lambda: lags(burrow) == shown, "Burrow has the same positions and lags")

        # no commit for longer than its window of commits lasts: in an hourly pipeline, each hour
        await_that(lambda: asked(burrow)["status"] == "ERR", f"Burrow's window of {window:.0f} s has passed")
        assert {row["status"] for row in asked(burrow)["partitions"]} == {"STOP"}
        ours = lag(sandbox)  # three records, where a hundred may wait for the next run
        assert (ours["verdict"], ours["over"]) == ("BACKLOG", False)


def lag(sandbox: KeptSandbox) -> dict[str, Any]:
    (said,) = json.loads(sandbox.cli("lag", str(sandbox.file), "--json").stdout)
    return dict(said)
