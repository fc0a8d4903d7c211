"""What an interval reads, and what twelve of them cost against all at once."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.harness import Bench, Goal, Options, median

from sluice.cli.output import err, print_table

__all__ = ["intervals"]

_PARTS = 12


def intervals(bench: Bench, options: Options) -> dict[str, Any]:
    """Replace the whole time of a topic at once, and in twelve parts; both in a table that a live run filled."""
    topic = bench.topic("big", options.records)
    name = bench.fresh("intervals")
    file = bench.pipeline(topic, name, source={"kafka": {"topics": [topic]}})
    bench.run(file, "--no-validate")
    edges = _edges(bench, topic)
    whole, parts = [(edges[0], edges[-1])], list(itertools.pairwise(edges))
    pairs: list[dict[str, dict[str, float]]] = []
    for number in range(options.runs):
        order = {"whole": whole, "parts": parts}
        pairs.append({side: _sum(bench, file, order[side]) for side in (sorted(order) if number % 2 else order)})
        told = "; ".join(f"{side} {pairs[-1][side]['seconds']:.1f} s" for side in ("whole", "parts"))
        err.print(f"intervals, pair {number + 1}: {told}")
    bench.remove(name)
    print_table([{"of": side, **figures} for side, figures in pairs[-1].items()], ["of", *pairs[-1]["whole"]])
    ratio = median([p["parts"]["seconds"] / p["whole"]["seconds"] for p in pairs])
    cost = Goal("twelve parts / whole, seconds without the session's start", 1.3)
    err.print(f"parts/whole {ratio:.2f}; {cost.verdict(ratio)}")
    share = max(p["parts"]["read"] / p["parts"]["inside"] for p in pairs)
    reading = Goal("records read / records of the interval", 1.05)
    err.print(f"read/inside {share:.3f}; {reading.verdict(share)}")
    return {
        "title": f"intervals: {_PARTS} parts against the whole",
        "records": options.records,
        "pairs": pairs,
        "ratio": round(ratio, 3),
        "read": round(share, 4),
        "goal": [cost.limit, reading.limit],
        "met": ratio <= cost.limit and share <= reading.limit,
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


def _sum(bench: Bench, file: Path, wanted: list[tuple[str, str]]) -> dict[str, float]:
    """Run these intervals one after the other; return what they cost in all, but for processes and sessions."""
    seconds, read, inside, wall = 0.0, 0, 0, 0.0
    for start, end in wanted:
        ran = bench.run(file, "--no-validate", "--start", start, "--end", end)
        seconds += ran.phases["planning"] + ran.phases["query"]
        read += ran.account["planned"] - ran.account["absent"]
        inside += ran.account["written"] + ran.account["quarantined"]
        wall += ran.figure.wall
    return {"seconds": round(seconds, 1), "read": read, "inside": inside, "wall": round(wall, 1)}
