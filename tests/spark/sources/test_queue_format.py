"""``spark.readStream.format("sluice_queue")``, in a Spark of its own: nothing of a pipeline is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.queues import Nats, Redis, started

from sluice.connections import variable_of
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import Message
from sluice_spark.sources.inputs import LATEST
from sluice_spark.sources.queue_input import MessagesChunk

pytestmark = [pytest.mark.spark, pytest.mark.long]

_SCRIPT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from sluice_spark.sources.queue_format import QueueFormat

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
spark.dataSource.register(QueueFormat)

def on_batch(frame, number):
    rows = [[r.topic, r.offset, bytes(r.value).decode()] for r in frame.collect()]
    with open(folder / "batches", "a") as out:
        out.write(json.dumps([number, rows]) + chr(10))
    if (folder / "fail").exists():
        (folder / "fail").unlink()
        raise RuntimeError("the sink is down")

def drain(**more):
    read = spark.readStream.format("sluice_queue").options(**options, **more).load()
    write = read.writeStream.foreachBatch(on_batch).trigger(availableNow=True)
    try:
        write.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    except Exception as error:
        print("failed", str(error).replace(chr(10), " "), flush=True)
    else:
        print("done", flush=True)

for line in sys.stdin:
    command = json.loads(line)
    if "frame" in command:
        more = command["frame"]
        print(spark.read.format("sluice_queue").options(**options, **more).load().count(), flush=True)
    else:
        drain(**command)
"""


def connections(server: Redis) -> int:
    found: int = server.client.info("stats")["total_connections_received"]
    return found


@pytest.mark.parametrize("kind", [Redis, Nats])
def test_queue_format_reads_each_message_once_and_names_removed_ones(kind: type[Redis | Nats], tmp_path: Path) -> None:
    server = started(kind, tmp_path / "server")
    own = {"field": "value"} if kind is Redis else {}
    options = {"connection": "queue", "kind": server.kind, "streams": "orders, refunds", "name": "q", **own}
    environment = {**os.environ, variable_of("queue"): json.dumps(server.connection())}
    for stream in ("orders", "refunds"):
        server.add(stream, [b"%d" % n for n in range(5)])
    script = [sys.executable, "-c", _SCRIPT, str(tmp_path), json.dumps(options)]
    process = subprocess.Popen(script, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def asked(command: dict[str, Any]) -> str:
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    def batches() -> list[tuple[int, list[tuple[str, int, str]]]]:
        lines = (tmp_path / "batches").read_text().splitlines()
        (tmp_path / "batches").unlink()
        return [(number, sorted(map(tuple, rows))) for number, rows in map(json.loads, lines)]

    def rows(start: int, end: int, *streams: str) -> list[tuple[str, int, str]]:
        return [(stream, n, str(n)) for stream in streams or ("orders", "refunds") for n in range(start, end)]

    try:
        (tmp_path / "fail").touch()
        assert "the sink is down" in asked({"maxRecordsPerTrigger": "4", "minPartitions": "3"})
        first = batches()
        assert asked({"maxRecordsPerTrigger": "4"}) == "done"
        again = batches()
        assert again[0] == first[0], "the batch that failed has the same messages"
        assert sorted(row for _, found in again for row in found) == rows(0, 5)
        assert max(len(found) for _, found in again) <= 4
        assert asked({}) == "done"
        assert not (tmp_path / "batches").exists(), "there is nothing new"
        server.add("orders", [b"%d" % n for n in range(5, 12)])
        server.trim("orders", 3)
        gone = asked({})
        assert "removed messages before they were read: orders-0 [5, 9)" in gone, gone
        assert asked({"failOnDataLoss": "false"}) == "done"
        assert [row for _, found in batches() for row in found] == rows(9, 12, "orders")
        assert asked({"frame": {}}) == "8"
        if isinstance(server, Redis):
            before = connections(server)
            assert asked({"frame": {"minPartitions": "8"}}) == "8"
            assert connections(server) - before < 8, "eight tasks, and a connection for each worker and the planning"
        server.remove("refunds")
        server.add("refunds", [b"new"] * 9)
        assert "is another one than the query has read" in asked({})
        assert "option minPartitions is 'x'" in asked({"minPartitions": "x"})
    finally:
        process.stdin.close()
        process.wait(60)
        server.stop()


def test_queue_message_whose_time_no_timestamp_holds_has_the_last_one() -> None:
    messages = [Message(0, 7, None, b"1", ()), Message(1, 2**62, None, b"2", ())]
    found = MessagesChunk(OffsetRange("s", 0, 0, 2), messages).records()["timestamp"].cast("int64").to_pylist()
    assert found == [7000, LATEST * 1000]
