"""What an interval reads, and what twelve of them cost against all at once."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

from tests.bench.harness import Bench, Goal, Options, median

from sluice.cli.output import print_table

__all__ = ["intervals"]

_PARTS = 12
_BATCHES = 52
"""In which live runs wrote the table: a year's records come in more than one."""


def intervals(bench: Bench, options: Options) -> dict[str, Any]:
    """Replace the whole time of a topic at once, and in twelve parts, each in a table that live runs have just filled.

    In turn in one session, whose start is set aside, and which has done all of it once before it is measured.
    """
    topic = bench.topic("big", options.records)
    edges = _edges(bench, topic)
    sides = {"whole": [(edges[0], edges[-1])], "parts": list(itertools.pairwise(edges))}
    order = ["parts", *(side for n in range(options.runs) for side in (sides if n % 2 == 0 else reversed(sides)))]
    size = {"kafka": {"topics": [topic], "max_records_per_batch": options.records // _BATCHES}}
    files = [bench.pipeline(topic, bench.fresh("intervals"), source=size) for _ in order]
    tables = [{"pipeline": str(file), "intervals": sides[side]} for file, side in zip(files, order, strict=True)]
    _, *found = bench.loop("many_intervals.py", files[0], tables=tables).account
    pairs = [dict(zip(order[n : n + 2], found[n - 1 : n + 1], strict=True)) for n in range(1, len(order), 2)]
    for file in files:
        bench.remove(file.stem)
    print_table([{"of": side, **pair[side]} for pair in pairs for side in sides], ["of", *found[0]])
    ratio = median([p["parts"]["seconds"] / p["whole"]["seconds"] for p in pairs])
    cost = Goal("twelve parts / whole, seconds without the session's start", 1.3)
    met = cost.judge(ratio, f"parts/whole {ratio:.2f}")["met"]
    share = max(p["parts"]["read"] / p["parts"]["inside"] for p in pairs)
    reading = Goal("records read / records of the interval", 1.05)
    met &= reading.judge(share, f"read/inside {share:.3f}")["met"]
    return {
        "title": f"intervals: {_PARTS} parts against the whole",
        "records": options.records,
        "pairs": pairs,
        "ratio": round(ratio, 3),
        "read": round(share, 4),
        "goal": [cost.limit, reading.limit],
        "met": met,
    }


def _edges(bench: Bench, topic: str) -> list[str]:
    """Cut the time of a topic into parts that hold about as many records."""
    from kafka import KafkaConsumer, TopicPartition

    ends = bench.topics.ends(topic)
    consumer = KafkaConsumer(bootstrap_servers=bench.broker.bootstrap, max_partition_fetch_bytes=4096)

    def time_at(partition: int, offset: int) -> int:
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, offset)
        while True:
            for records in consumer.poll(timeout_ms=1000).values():
                return int(records[0].timestamp)

    partition, end = max(ends.items(), key=lambda item: item[1])
    inner = [time_at(partition, end * part // _PARTS) for part in range(1, _PARTS)]
    first = min(time_at(p, 0) for p in ends)
    last = max(time_at(p, n - 1) for p, n in ends.items())
    consumer.close()
    # times of a topic that several producers filled are not strictly in order: the last may stand before the end
    moments = [first - 1, *inner, last + 60_000]
    now = int(datetime.now(UTC).timestamp() * 1000)
    return [datetime.fromtimestamp(min(ms, now) / 1000, UTC).isoformat(timespec="milliseconds") for ms in moments]
