"""A message queue as the source, against the same records through Kafka."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from typing import Any

from tests.bench.harness import Bench, Figure, Goal, Options, compare
from tests.fixtures.queues import Redis
from tests.fixtures.runs import consume

from sluice.cli.output import err
from sluice.connections import variable_of

__all__ = ["queue"]

_SHARE = 0.1
"""Of the volume's records: Redis keeps them in memory."""


def queue(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a Redis stream and a topic with the same records, not judged."""
    if not shutil.which(Redis.program):
        err.print("there is no Redis here: left out")
        return {}
    records = int(options.records * _SHARE)
    topic = bench.topic("queued", records)
    server = Redis(bench.scratch / "redis")
    server.start()
    try:
        err.print(f"filling a stream of Redis with {records:,} records")
        values = (record.value for record in consume(bench.broker, topic))
        while portion := list(itertools.islice(values, 10_000)):
            server.add("queued", portion)
        os.environ[variable_of("redis_default")] = json.dumps(server.connection())
        source = {"queue": {"connection": "redis_default", "kind": Redis.kind, "streams": ["queued"], "field": "value"}}

        def ours(**keys: Any) -> Figure:
            return bench.run(bench.pipeline(topic, bench.fresh("ours"), **keys), "--no-validate").figure

        sides = {"kafka": ours, "redis": lambda: ours(source=source)}
        title = "a queue (Redis Streams) and Kafka: drain, not judged"
        return compare(title, records, options.runs, sides, goal=Goal("of Kafka", 2.0))
    finally:
        server.stop()
