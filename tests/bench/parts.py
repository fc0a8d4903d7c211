"""What parts of a run cost: the ledger, judging its rows, and what an interval reads."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from tests.bench.harness import Bench, Goal, Options, median
from tests.fixtures.postgres import binaries, server

from sluice.cli.output import err, print_table

_SMALL, _RECORDS = 50, 5_000
"""Batches of a run whose ledger is measured, and their records."""


def ledger(bench: Bench, options: Options) -> dict[str, Any]:
    """Run 50 small batches with the ledger in SQLite, and in PostgreSQL when it is here."""
    topic = bench.topic("small", _RECORDS)
    found: dict[str, list[float]] = {}
    urls: dict[str, dict[str, str]] = {"SQLite": {}}
    with ExitStack() as stack:
        if programs := binaries():
            running = stack.enter_context(server(programs, durable=True))
            urls["PostgreSQL"] = {"SLUICE_LEDGER_URL": f"{running.url}/postgres"}
        else:
            err.print("no PostgreSQL server binaries here: SQLite alone")
        for _ in range(options.runs):
            for kind, env in urls.items():
                name, cap = bench.fresh("ledger"), str(_RECORDS // _SMALL)
                ran = bench.run(bench.pipeline(topic, name), "--no-validate", "--max-records-per-batch", cap, env=env)
                found.setdefault(kind, []).append(1000 * ran.phases["ledger"] / len(ran.batches))
                err.print(f"ledger, {kind}: {found[kind][-1]:.1f} ms a batch, {len(ran.batches)} batches")
                bench.remove(name)
    rows = [{"ledger": kind, "ms a batch": round(median(values), 1)} for kind, values in found.items()]
    print_table(rows, ["ledger", "ms a batch"])
    each = {kind: [round(v, 1) for v in values] for kind, values in found.items()}
    judged = Goal("ms a batch", 50).judge(max(row["ms a batch"] for row in rows))
    return {"title": f"ledger: {_SMALL} small batches", "ms_a_batch": each, "medians": rows, **judged}


_STORED = 10_000


def judging(bench: Bench, options: Options) -> dict[str, Any]:
    """Judge the rows of one run in turn with plain Great Expectations, on the same frame in the same session."""
    topic, name = bench.topic("big", options.records), bench.fresh("judging")
    file = bench.pipeline(topic, name)
    run = bench.run(file, "--no-validate").account["run"]
    answer = bench.loop("judgements", file, run=run, rounds=options.runs, stored=_STORED).account
    bench.remove(name)
    print_table(answer["rounds"], list(answer["rounds"][0]))
    ratio = median([r["ours"] / r["plain"] for r in answer["rounds"]])
    cost = Goal("ours / plain Great Expectations", 0.5)
    met = cost.judge(ratio, f"judging {options.records:,} rows: {ratio:.2f}")["met"]
    # the first one still finds all of the stored runs
    docs = answer["data_docs"]
    slowest = max(docs["seconds"])
    pages = Goal(f"seconds of Data Docs after {_STORED:,} stored runs", 1.0)
    met &= pages.judge(slowest, f"Data Docs: {slowest:.2f} s at most, {max(docs['cpu']):.2f} s of CPU")["met"]
    found = {"title": "judging a slice against plain Great Expectations", "records": options.records, **answer}
    return {**found, "ratio": round(ratio, 3), "goal": [cost.limit, pages.limit], "met": met}


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
    _, *found = bench.loop("intervals", files[0], tables=tables).account
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
    title, goals = f"intervals: {_PARTS} parts against the whole", [cost.limit, reading.limit]
    answer = {"title": title, "records": options.records, "pairs": pairs}
    return {**answer, "ratio": round(ratio, 3), "read": round(share, 4), "goal": goals, "met": met}


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
