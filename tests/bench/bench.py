"""``make bench``: our run against a bare script, whole cold processes in turn, on one broker in one session.

Reported are wall seconds, CPU seconds (user and system of the whole process tree, the broker's not included), the
largest process's memory, and ratios pair by pair. Figures of one machine; only ratios travel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sluice.cli.output import err, print_json, print_table
from sluice.connections import Connection, variable_of
from sluice.home import Home
from sluice.local import archive, jars
from sluice.local.kafka import Broker, Topics
from sluice.spec import load
from sluice.submit import SparkSubmit, archive_file, bounded_run

HERE = Path(__file__).parent
SCHEMA = "id BIGINT, ts TIMESTAMP, amount DOUBLE, country STRING, payload STRING"
SUITE = {
    "name": "bench",
    "expectations": [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "amount", "min_value": 0, "max_value": 1000},
        },
        {
            "type": "expect_column_values_to_be_in_set",
            "kwargs": {"column": "country", "value_set": ["DE", "FR", "IT", "ES", "PL"]},
        },
        {
            "type": "expect_compound_columns_to_be_unique",
            "kwargs": {"column_list": ["_topic", "_partition", "_offset"]},
        },
    ],
}


@dataclass(frozen=True)
class Figure:
    """What one whole process cost."""

    wall: float
    cpu: float
    peak_mb: float


def measure(argv: list[str], env: dict[str, str], log: Path) -> Figure:
    """Run a command to its end; raise when it fails."""
    began = time.monotonic()
    with log.open("ab") as sink:
        child = subprocess.Popen(argv, env={**os.environ, **env}, stdout=sink, stderr=sink)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise SystemExit(f"{argv[0]} ended with {child.returncode}:\n{tail}")
    return Figure(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


class Bench:
    """One scratch home, one broker, the two competitors."""

    def __init__(self, scratch: Path) -> None:
        home = Home.from_env()
        archive.make(report=err.print)
        self.jars = ",".join(map(str, jars.fetch("spark")))
        self.home = scratch / "home"
        (self.home / "jvm").mkdir(parents=True)
        (self.home / "jars").symlink_to(home.jars)
        for kept in (archive_file(home), archive_file(home).with_suffix(".stamp")):
            (self.home / "jvm" / kept.name).symlink_to(kept)
        self.log = scratch / "bench.log"
        self.suite = scratch / "suite.json"
        self.suite.write_text(json.dumps(SUITE))
        self.scratch = scratch
        self.broker = Broker(scratch / "kafka", port=0, jar_files=jars.fetch("kafka"))
        self.broker.start()
        self.kafka = Connection("kafka_default", "kafka", extra={"bootstrap.servers": self.broker.bootstrap})
        self.spark = Connection("spark_default", "spark", "local[2]")
        os.environ["SLUICE_HOME"] = str(self.home)
        os.environ[variable_of("kafka_default")] = self.kafka.to_json()
        os.environ[variable_of("spark_default")] = self.spark.to_json()
        self.count = 0

    def bare(self, script: str, *arguments: str) -> Figure:
        """Run a bare script under plain spark-submit."""
        probe = self.ours_submit("probe", validate=False)
        conf = [
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.ui.enabled=false",
        ]
        argv = [probe.argv()[0], "--master", "local[2]", "--jars", self.jars]
        for item in conf:
            argv += ["--conf", item]
        env = {k: v for k, v in probe.env.items() if k in ("SPARK_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")}
        return measure([*argv, str(HERE / script), *arguments], env, self.log)

    def pipeline(self, topic: str, name: str) -> Path:
        """Write a pipeline file that drains ``topic`` in one batch."""
        file = self.scratch / f"{name}.yaml"
        file.write_text(
            json.dumps(
                {
                    "pipeline": name,
                    "source": {"kafka": {"topics": [topic], "max_records_per_batch": 10_000_000}},
                    "decode": {"json": {"schema": SCHEMA}},
                    "sink": {"delta": {"path": name}},
                    "quality": {"suite": "suite.json"},
                }
            )
        )
        return file

    def ours_submit(self, name: str, *, validate: bool, topic: str = "tiny") -> SparkSubmit:
        """Return the spark-submit of our run."""
        return bounded_run(
            load(self.pipeline(topic, name)), "bench", spark=self.spark, kafka=self.kafka, validate=validate
        )

    def ours(self, topic: str, *, validate: bool) -> Figure:
        """Run our job as ``sluice run`` does, its command line included."""
        self.count += 1
        file = self.pipeline(topic, f"ours-{self.count}")
        argv = [str(Path(sys.executable).with_name("sluice")), "run", str(file), "--json"]
        return measure([*argv, "--validate" if validate else "--no-validate"], {}, self.log)

    def bare_drain(self, topic: str) -> tuple[Figure, Path]:
        """Run the bare drain into a new table."""
        self.count += 1
        out = self.scratch / f"bare-{self.count}"
        return self.bare("bare.py", self.broker.bootstrap, topic, SCHEMA, str(out)), out

    def bare_validated(self, topic: str) -> Figure:
        """Run the bare drain, then the bare validation."""
        first, out = self.bare_drain(topic)
        second = self.bare("bare_gx.py", str(out), str(self.suite), str(self.scratch / f"gx-{self.count}"))
        return Figure(first.wall + second.wall, first.cpu + second.cpu, max(first.peak_mb, second.peak_mb))

    def fill(self, topic: str, records: int) -> None:
        """Make and fill a topic of four partitions."""
        Topics(self.broker.bootstrap).create(topic, 4, {"retention.ms": "-1"})
        err.print(f"filling {topic} with {records:,} records")
        self.bare("fill.py", self.broker.bootstrap, topic, str(records))


def compare(
    title: str, records: int, runs: int, bare: Callable[[], Figure], ours: Callable[[], Figure]
) -> dict[str, object]:
    """Run both in turn, bare first and then ours first, and print medians and ratios."""
    pairs: list[tuple[Figure, Figure]] = []
    for number in range(runs):
        order = (bare, ours) if number % 2 == 0 else (ours, bare)
        figures = {action: action() for action in order}
        pairs.append((figures[bare], figures[ours]))
        b, o = pairs[-1]
        err.print(
            f"{title}, pair {number + 1}: bare {b.wall:.1f} s, {b.cpu:.1f} CPU s; "
            f"ours {o.wall:.1f} s, {o.cpu:.1f} CPU s"
        )
    medians = [
        Figure(*(statistics.median(getattr(p[side], f) for p in pairs) for f in ("wall", "cpu", "peak_mb")))
        for side in (0, 1)
    ]
    rows = [
        {"what": name, **{k: round(v, 1) for k, v in asdict(m).items()}, "records/s": round(records / m.wall)}
        for name, m in zip(("bare", "ours"), medians, strict=True)
    ]
    ratios = {
        f: round(statistics.median(getattr(o, f) / getattr(b, f) for b, o in pairs), 3)
        for f in ("wall", "cpu", "peak_mb")
    }
    err.print(f"\n[bold]{title}[/bold]: {records:,} records, {runs} pairs, medians")
    print_table(
        [*rows, {"what": "ratio ours/bare", **{k: f"{v:.2f}" for k, v in ratios.items()}}],
        ["what", "wall", "cpu", "peak_mb", "records/s"],
    )
    return {
        "title": title,
        "records": records,
        "pairs": runs,
        "bare": asdict(medians[0]),
        "ours": asdict(medians[1]),
        "ratio": ratios,
    }


def main() -> None:
    """Run the two comparisons; the last line on stdout is one JSON object."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500,000 records and one pair: to see that it works")
    parser.add_argument("--only", choices=["volume", "fixed"])
    parser.add_argument("--runs", type=int, default=3, help="pairs of each comparison (3)")
    parser.add_argument("--records", type=int, default=5_000_000, help="records of the volume (5,000,000)")
    args = parser.parse_args()
    runs, records = (1, 500_000) if args.quick else (args.runs, args.records)
    results = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        bench = Bench(Path(scratch))
        try:
            if args.only != "fixed":
                bench.fill("big", records)
                results.append(
                    compare(
                        "volume: drain, not judged",
                        records,
                        runs,
                        lambda: bench.bare_drain("big")[0],
                        lambda: bench.ours("big", validate=False),
                    )
                )
            if args.only != "volume":
                bench.fill("tiny", 10_000)
                results.append(
                    compare(
                        "fixed cost: drain and judge",
                        10_000,
                        runs,
                        lambda: bench.bare_validated("tiny"),
                        lambda: bench.ours("tiny", validate=True),
                    )
                )
        finally:
            bench.broker.stop()
    print_json(results)


if __name__ == "__main__":
    main()
