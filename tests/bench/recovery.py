"""What strategies cost, what a killed run costs, and what redriving a lost range opens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.bench.harness import Bench, Figure, Goal, Options, compare, median, python_path

from sluice.cli.output import err, print_table
from sluice.ledger import Ledger
from sluice.wal import WriteAheadLog
from sluice_demo.spark import SparkCluster

_MODULES = Path(__file__).parents[1] / "fixtures" / "modules"
_BATCHES = 5
_KILLED_AT = {
    "replay": ("rows-staged:3", "before-sink-commit:3"),
    "wal": ("rows-staged:3", "before-sink-commit:3", "segments-staged:3", "sealed:3"),
}


def wal(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a large topic straight, and by way of the write-ahead log."""
    title, sides = "wal: landed, sealed, applied; not judged", _strategies(bench, options.records, "replay", "wal")
    return compare(title, options.records, options.runs, sides, goal=Goal("wal/replay wall", 1.15))


def hot(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a large topic on a cluster of two workers, straight, and with each batch held on both."""
    with SparkCluster(bench.scratch / "cluster") as cluster:
        env = {"AIRFLOW_CONN_SPARK_DEFAULT": f'{{"conn_type": "spark", "host": "{cluster.master}"}}'}
        sides = _strategies(bench, options.records, "replay", "hot", env=env)
        title, goal = "hot: each batch held on two executors; not judged", Goal("hot/replay wall", 1.5)
        return compare(title, options.records, options.runs, sides, fields=("wall",), goal=goal)


def _strategies(
    bench: Bench, records: int, *names: str, env: Mapping[str, str] | None = None
) -> dict[str, Callable[[], Figure]]:
    topic = bench.topic("big", records)

    def drain(strategy: str) -> Figure:
        # batches of a pipeline file that says nothing of their size
        name = bench.fresh(strategy)
        file = bench.pipeline(topic, name, source={"kafka": {"topics": [topic]}}, recovery=strategy)
        ran = bench.run(file, "--no-validate", env=env).check(written=records)
        if ran.account.get("notes"):
            raise SystemExit(f"not what was to be measured: {ran.account}")
        err.print(f"{strategy}: {ran.figure.wall:.1f} s, {len(ran.batches)} batches; {ran.phases}")
        bench.remove(name)
        return ran.figure

    return {name: lambda name=name: drain(name) for name in names}


def killed(bench: Bench, options: Options) -> dict[str, Any]:
    """Kill a run in its third of five batches, run it again, and count what was read more than once."""
    rows = [row for strategy in _KILLED_AT for row in _kill(bench, options, strategy)]
    print_table(rows, ["strategy", "killed at", "from Kafka", "from the log", "seconds", "of it twice", "batches"])
    err.print("from Kafka, from the log: (records read - records planned) / records of a batch")
    err.print("batches: (both attempts - one more process start - undisturbed run) / a batch of the undisturbed run")
    worst = max(max(row["from Kafka"], row["from the log"] or 0) for row in rows)
    judged = Goal("batches read twice", 1).judge(worst, f"at most {worst:.2f} batches are read twice")
    title = "killed: both attempts against an undisturbed run"
    return {"title": title, "records": options.records, "cases": rows, **judged}


def _kill(bench: Bench, options: Options, strategy: str) -> list[dict[str, Any]]:
    topic = bench.topic("big", options.records)
    size = -(-options.records // _BATCHES) + 4  # the cap is shared out by partition, and rounded down

    def fresh() -> tuple[str, Path]:
        name = bench.fresh(f"killed-{strategy}")
        kafka = {"topics": [topic], "max_records_per_batch": size}
        return name, bench.pipeline(topic, name, source={"kafka": kafka}, recovery=strategy, wal={"roll": "1d"})

    calm = []
    for _ in range(options.runs):
        name, file = fresh()
        ran = bench.run(file, "--no-validate")
        if len(ran.batches) != _BATCHES:
            raise SystemExit(f"{len(ran.batches)} batches, not {_BATCHES}")
        calm.append((ran.figure.wall, ran.phases["query"]))
        bench.remove(name)
    wall, query = median([w for w, _ in calm]), median([q for _, q in calm])
    rows = []
    for point in _KILLED_AT[strategy]:
        name, file = fresh()
        first = bench.run(file, "--no-validate", "--run", "first", expect=None, env={"SLUICE_KILL_AT": point})
        if first.code == 0:
            raise SystemExit(f"{point} was never reached")
        landed = _landed(bench, name)
        second = bench.run(file, "--no-validate", "--run", "second")
        ledger = Ledger.open()
        written = sum(int(ledger.runs.account(name, run)["written"]) for run in ("first", "second"))
        if written != options.records:
            raise SystemExit(f"{written} records in the sink")
        applied = sum(n for ran in (first, second) for _, n in ran.batches)
        again = from_kafka = applied - options.records
        if strategy == "wal":
            sealed = [e for e in ledger.events(name, "second") if e["type"] == "SegmentSealed"]
            from_kafka = landed + sum(e["payload"]["records"] for e in sealed) - options.records
        start = second.figure.wall - second.phases["query"]
        both = first.figure.wall + second.figure.wall
        row = {"strategy": strategy, "killed at": point, "from Kafka": round(from_kafka / size, 2)}
        row |= {"from the log": round(again / size, 2) if strategy == "wal" else None}
        row |= {"undisturbed": round(wall, 2), "seconds": round(both, 2), "process start": round(start, 2)}
        row |= {"of it twice": round(both - start - wall, 2), "ratio": round((both - start) / wall, 3)}
        row |= {"batches": round((both - start - wall) / (query / _BATCHES), 2)}
        rows.append({**row, "processed": {"first": first.batches, "second": second.batches}})
        err.print(str(rows[-1]))
        bench.remove(name)
    return rows


def _landed(bench: Bench, name: str) -> int:
    """Return how many records lie in the log's files, sealed or not, those of a write under way included."""
    import pyarrow.parquet as pq

    found = 0
    for file in (bench.home / "logs" / name).glob("batches/**/*.parquet"):
        try:
            found += pq.read_metadata(file).num_rows
        except (OSError, ValueError):  # cut off in the middle
            continue
    return found


def redrive(bench: Bench, options: Options) -> dict[str, Any]:
    """Redrive one lost record out of a log of many segments, and see which of them were opened."""
    records = 1_000_000 if not options.quick else 100_000
    topic, name = bench.topic("many", records), bench.fresh("redrive")
    env = {"PYTHONPATH": python_path(_MODULES)}
    poison = str(records * 7 // 10)

    def file(strategy: str) -> Path:
        return bench.pipeline(
            topic, name, source={"kafka": {"topics": [topic], "max_records_per_batch": records // 5}},
            recovery=strategy, transform={"python": "poison:dying"}, wal={"segment_records": records // 200},
        )  # fmt: skip

    bench.run(file("wal"), "--no-validate", "--run", "r", expect=1, env={**env, "POISON_IDS": poison})
    bench.run(file("ignore_range"), "--no-validate", "--run", "r", env={**env, "POISON_IDS": poison})
    ledger = Ledger.open()
    (lost,) = [row.range for row in ledger.offsets.lost(name)]
    bench.topics.delete_records(topic, bench.topics.ends(topic))
    log = WriteAheadLog(str(bench.home / "logs" / name), name)
    holding = {s.path for s in log.segments([lost])}
    files = {s.path: Path(log.path) / s.path for s in log.segments()}
    sizes = {path: f.stat().st_size for path, f in files.items()}
    for f in files.values():
        os.utime(f, (0, f.stat().st_mtime))  # relatime: the next read sets it
    ran = bench.sluice("redrive", str(file("replay")), "--no-validate", "--json", "--run", "again", env=env)
    opened = {path for path, f in files.items() if f.stat().st_atime > 0}
    if ledger.offsets.lost(name) or ran.account["written"] != len(lost):
        raise SystemExit(f"not redriven: {ran.out}")
    if not holding <= opened:
        raise SystemExit("this file system does not keep times of access: what was opened is not known")
    whole = sum(sizes.values())
    share = sum(sizes[p] for p in opened) / whole
    row = {"segments": len(files), "log MB": round(whole / 1e6, 1), "lost offsets": len(lost)}
    row |= {"segments that hold them": len(holding), "segments opened": len(opened)}
    row |= {"bytes opened / bytes of the log": f"{share:.2%}", "seconds": round(ran.figure.wall, 1)}
    print_table([row], list(row))
    err.print(f"phases: {ran.phases}")
    bench.remove(name)
    judged = Goal("segments opened / segments that hold it", 1).judge(len(opened) / len(holding))
    return {"title": "redrive: one lost range in a log of many segments", "records": records, **row, **judged}
