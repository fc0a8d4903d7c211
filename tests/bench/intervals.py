"""What an interval reads, and what twelve of them cost against all at once."""

from __future__ import annotations

import dataclasses
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.harness import HERE, Bench, Goal, Options, measure, median, python_path

from sluice.cli.output import err, print_table
from sluice.spec import load
from sluice.submit import bounded_run

__all__ = ["intervals"]

_PARTS = 12


def intervals(bench: Bench, options: Options) -> dict[str, Any]:
    """Replace the whole time of a topic at once, and in twelve parts, in a table that a live run filled.

    All in one session, which has replaced one part before anything is measured: what a session's start costs is the
    comparison ``fixed``.
    """
    topic = bench.topic("big", options.records)
    name = bench.fresh("intervals")
    file = bench.pipeline(topic, name, source={"kafka": {"topics": [topic]}})
    bench.run(file, "--no-validate")
    edges = _edges(bench, topic)
    whole, parts = [(edges[0], edges[-1])], list(itertools.pairwise(edges))
    order = [("whole", whole), ("parts", parts)]
    turns = [side for number in range(options.runs) for side in (order if number % 2 == 0 else order[::-1])]
    told = iter(_replace(bench, file, [parts[0], *(interval for _, side in turns for interval in side)])[1:])
    pairs: list[dict[str, dict[str, float]]] = [{} for _ in range(options.runs)]
    for number, (side, wanted) in enumerate(turns):
        found = [next(told) for _ in wanted]
        pairs[number // 2][side] = {
            "seconds": round(sum(f["seconds"] for f in found), 1),
            "read": sum(f["planned"] for f in found),
            "inside": sum(f["written"] + f["quarantined"] for f in found),
        }
    bench.remove(name)
    for number, pair in enumerate(pairs):
        shown = "; ".join(f"{side} {pair[side]['seconds']:.1f} s" for side in ("whole", "parts"))
        err.print(f"intervals, pair {number + 1}: {shown}")
    print_table([{"of": side, **figures} for side, figures in pairs[-1].items()], ["of", *pairs[-1]["whole"]])
    ratio = median([p["parts"]["seconds"] / p["whole"]["seconds"] for p in pairs])
    cost = Goal("twelve parts / whole, seconds in one session", 1.3)
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


def _replace(bench: Bench, file: Path, wanted: list[tuple[str, str]]) -> list[dict[str, float]]:
    """Replace these intervals one after the other in one session; return what each cost and read."""
    begun = bounded_run(load(file), "r", spark=bench.spark, kafka=bench.kafka)
    argv = [str(file), *(moment for interval in wanted for moment in interval)]
    loop = dataclasses.replace(begun, application=HERE / "many_intervals.py", arguments=argv)
    ran = measure(loop.argv(), {**loop.env, "PYTHONPATH": python_path(HERE.parents[1])}, bench.scratch / "parts.log")
    return [json.loads(line.partition("interval ")[2]) for line in ran.log.splitlines() if "sluice: interval {" in line]


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
