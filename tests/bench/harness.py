"""What every comparison needs: a scratch home, a broker, whole processes that are measured, pairs in turn."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from tests.bench.shapes import COUNTRIES, SCHEMA, SHAPES

from sluice.cli.output import err, print_table
from sluice.connections import Connection, variable_of
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file, submit
from sluice.local import archive
from sluice.local.kafka import Broker, Topics
from sluice.pipeline import load
from sluice.run.actions import RunRequest

HERE = Path(__file__).parent
_EVERY = 0.25
"""Seconds between two looks at CPU; memory is looked at every fourth time, since it takes longer."""
_EXPECTATIONS: dict[str, dict[str, Any]] = {
    "column_values_to_not_be_null": {"column": "id"},
    "column_values_to_be_between": {"column": "amount", "min_value": 0, "max_value": 1000},
    "column_values_to_be_in_set": {"column": "country", "value_set": COUNTRIES},
    "compound_columns_to_be_unique": {"column_list": ["_topic", "_partition", "_offset"]},
}
SUITE = {"name": "bench", "expectations": [{"type": f"expect_{k}", "kwargs": v} for k, v in _EXPECTATIONS.items()]}

_PHASE = re.compile(r"([a-z]+) (\d+\.\d\d)")
_BATCH = re.compile(r"sluice: batch (\d+): ([\d,]+) offsets in")


@dataclass(frozen=True)
class Options:
    """How much is measured."""

    runs: int
    records: int
    quick: bool


@dataclass(frozen=True)
class Goal:
    """What a figure must not exceed."""

    what: str
    limit: float

    def judge(self, value: float, what: str = "") -> dict[str, Any]:
        """Print whether a figure meets it, and return that."""
        met = value <= self.limit
        verdict = f"goal {self.what} ≤ {self.limit:g}: {'met' if met else 'MISSED'}"
        err.print("; ".join(filter(None, [what, verdict])))
        return {"goal": self.limit, "met": met}


@dataclass(frozen=True)
class Figure:
    """What one whole process cost, with all that it started."""

    wall: float
    cpu: float
    peak_mb: float
    """The most memory that all of its processes had at once, what they share counted once."""

    def __add__(self, other: Figure) -> Figure:
        return Figure(self.wall + other.wall, self.cpu + other.cpu, max(self.peak_mb, other.peak_mb))


@dataclass(frozen=True)
class Ran:
    """How a whole process ended, and what it said."""

    figure: Figure
    code: int
    out: str
    log: str

    @property
    def account(self) -> Any:
        """The JSON on its last line: the account that ``--json`` prints, or the figures of a loop in one session."""
        return json.loads(self.out.splitlines()[-1])

    def check(self, **expected: Any) -> Ran:
        """Return itself, if its account has these values."""
        if any(self.account[name] != value for name, value in expected.items()):
            raise SystemExit(f"not what was to be measured: {self.account}")
        return self

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, of the line with which a run ends its log."""
        (line,) = [text for text in self.log.splitlines() if "sluice: seconds:" in text]
        return {name: float(seconds) for name, seconds in _PHASE.findall(line.partition("seconds:")[2])}

    @property
    def batches(self) -> list[tuple[int, int]]:
        """Number and offsets of each batch that it began to process, as its log says."""
        return [(int(n), int(size.replace(",", ""))) for n, size in _BATCH.findall(self.log)]


def python_path(folder: Path) -> str:
    """Return a ``PYTHONPATH`` with one more folder in front."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def measure(argv: Sequence[str], env: Mapping[str, str], log: Path, *, expect: int | None = 0) -> Ran:
    """Run a command to its end; fail when it ends otherwise than expected (None: in whatever way)."""
    out, ended = log.with_suffix(".out"), threading.Event()
    began = time.monotonic()
    with log.open("wb") as stderr, out.open("wb") as stdout, ThreadPoolExecutor(1) as sampler:
        child = subprocess.Popen(list(argv), env={**os.environ, **env}, stdout=stdout, stderr=stderr)
        sample = sampler.submit(_sample, child.pid, ended)
        try:
            _, status, usage = os.wait4(child.pid, 0)
            wall = time.monotonic() - began
        finally:
            ended.set()
    child.returncode = os.waitstatus_to_exitcode(status)
    said = log.read_text(errors="replace")
    if expect is not None and child.returncode != expect:
        tail = "\n".join((said + out.read_text(errors="replace")).splitlines()[-30:])
        raise SystemExit(f"{' '.join(argv[:3])} ended with {child.returncode}:\n{tail}")
    seen, peak_mb = sample.result()
    cpu = max(usage.ru_utime + usage.ru_stime, seen)  # each misses something
    return Ran(Figure(wall, cpu, peak_mb), child.returncode, out.read_text(errors="replace"), said)


def _sample(pid: int, ended: threading.Event) -> tuple[float, float]:
    """Look at a process and all of its descendants until it ends; return its CPU seconds and its most memory in MB.

    ``wait4`` counts only processes that their parents waited for. Spark's Python workers are not among them: the JVM
    exits first. A sample counts them, and misses what a process used after the last look at it.
    """
    root, cpu, peak = psutil.Process(pid), dict[tuple[int, float], float](), 0
    for count in itertools.count():
        try:
            tree = [root, *root.children(recursive=True)]
        except psutil.Error:
            break
        memory = 0
        for process in tree:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                cpu[process.pid, process.create_time()] = times.user + times.system
                memory += process.memory_full_info().pss if count % 4 == 0 else 0
        peak = max(peak, memory)
        if ended.wait(_EVERY):
            break
    return sum(cpu.values()), peak / 1_000_000


class Bench:
    """One scratch folder, one broker, and the programs that are compared."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._shared = Home.from_env()
        archive.make(report=err.print)
        self.jars = ",".join(map(str, jars.fetch("spark")))
        self.home = self.make_home("home")
        self.suite = scratch / "suite.json"
        self.suite.write_text(json.dumps(SUITE))
        self.broker = Broker(scratch / "kafka", port=0, jar_files=jars.fetch("kafka"))
        self.broker.start()
        self.topics = Topics(self.broker.bootstrap)
        self.kafka = Connection("kafka_default", "kafka", extra={"bootstrap.servers": self.broker.bootstrap})
        self.spark = Connection("spark_default", "spark", "local[2]")
        os.environ["SLUICE_HOME"] = str(self.home)
        os.environ[variable_of("kafka_default")] = self.kafka.to_json()
        os.environ[variable_of("spark_default")] = self.spark.to_json()
        self._count = 0
        self._filled: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}-{self._count}"

    def make_home(self, name: str) -> Path:
        """Make a ``SLUICE_HOME`` that shares jars and class-data archive with the checkout's."""
        home = self.scratch / name
        (home / "jvm").mkdir(parents=True)
        (home / "jars").symlink_to(Path(self.jars.split(",")[0]).parents[1])
        for kept in (archive_file(self._shared), archive_file(self._shared).with_suffix(".stamp")):
            (home / "jvm" / kept.name).symlink_to(kept)
        return home

    def topic(self, name: str, records: int, shape: str = "small") -> str:
        """Return a topic with so many records of a shape; made and filled when asked for the first time."""
        if name not in self._filled:
            made = SHAPES[shape]
            self.topics.create(name, made.partitions, {"retention.ms": "-1", **made.settings})
            err.print(f"filling {name} with {records:,} records")
            self.bare("fill.py", self.broker.bootstrap, name, str(records), shape)
            self._filled[name] = records
        return name

    def pipeline(self, topic: str, name: str, **keys: Any) -> Path:
        """Write a pipeline file that drains ``topic`` as the defaults say; ``keys`` replace or add to its keys."""
        file = self.scratch / f"{name}.yaml"
        spec = {"pipeline": name, "source": {"kafka": {"topics": [topic]}}, "decode": {"json": {"schema": SCHEMA}}}
        spec |= {"sink": {"delta": {"path": name}}, "quality": {"suite": "suite.json"}}
        file.write_text(json.dumps(spec | keys))
        return file

    def sluice(self, *arguments: str, expect: int | None = 0, env: Mapping[str, str] | None = None) -> Ran:
        """Run a ``sluice`` command, its command line's own start included."""
        program = str(Path(sys.executable).with_name("sluice"))
        return measure([program, *arguments], env or {}, self._log(f"sluice-{arguments[0]}"), expect=expect)

    def run(self, file: Path, *options: str, expect: int | None = 0, env: Mapping[str, str] | None = None) -> Ran:
        return self.sluice("run", str(file), "--json", *options, expect=expect, env=env)

    def drain(self, topic: str, *, judge: bool = False, written: int | None = None, **keys: Any) -> Ran:
        """Drain a topic by a new pipeline with these keys, and remove what it left; fail if it wrote another number."""
        name = self.fresh("ours")
        ran = self.run(self.pipeline(topic, name, **keys), "--validate" if judge else "--no-validate")
        self.remove(name)
        return ran if written is None else ran.check(written=written)

    def loop(self, name: str, file: Path, *, env: Mapping[str, str] | None = None, **asked: Any) -> Ran:
        """Run one of ``loops.py``, which does in one session, again and again, what ``job.py`` does once."""
        begun = submit(load(file), RunRequest("bench"), spark=self.spark, find=lambda _: self.kafka, small=False)
        arguments = [json.dumps({"loop": name, "pipeline": str(file), **asked})]
        loop = dataclasses.replace(begun, application=HERE / "loops.py", arguments=arguments)
        env = {**loop.env, "PYTHONPATH": python_path(HERE.parents[1]), **(env or {})}
        return measure(loop.argv(), env, self._log(name))

    def remove(self, name: str) -> None:
        for part in (name, f"{name}_quarantine", f"checkpoints/{name}", f"logs/{name}"):
            shutil.rmtree(self.home / part, ignore_errors=True)

    def bare(self, script: str, *arguments: str, jars: Sequence[Path | None] = (), conf: Sequence[str] = ()) -> Figure:
        """Run a bare script under plain spark-submit, with more jars and settings."""
        request = RunRequest("bench", validate=False)
        probe = submit(load(self.pipeline("none", "probe")), request, spark=self.spark, find=lambda _: self.kafka)
        paths = ",".join([self.jars, *(str(jar) for jar in jars if jar)])
        argv = [probe.argv()[0], "--master", "local[2]", "--jars", paths]
        for item in (
            *conf,
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.ui.enabled=false",
        ):
            argv += ["--conf", item]
        env = {k: v for k, v in probe.env.items() if k in ("SPARK_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")}
        return measure([*argv, str(HERE / script), *arguments], env, self._log(script)).figure

    def python(self, name: str, needs: Sequence[str]) -> Path | None:
        """Return an interpreter of its own that has these packages; None if they cannot be had here."""
        folder = self.scratch / "peers" / name
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        if uv is None:
            return None
        python = folder / "bin" / "python"
        steps = ([uv, "venv", "-q", "--python", sys.executable, str(folder)],
                 [uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(python), *needs])  # fmt: skip
        if not python.exists() and any(subprocess.run(step, check=False).returncode for step in steps):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return python

    def _log(self, stem: str) -> Path:
        return self.scratch / f"{self.fresh(stem)}.log"


def compare(
    title: str,
    records: int,
    runs: int,
    sides: Mapping[str, Callable[[], Figure]],
    *,
    fields: Sequence[str] = ("wall", "cpu", "peak_mb"),
    goal: Goal | None = None,
) -> dict[str, Any]:
    """Run the sides in turn, each time another one first, and print medians and ratios to the first side.

    The goal is for the second side's wall seconds over the first one's.
    """
    one, two, *_ = names = list(sides)
    rounds: list[dict[str, Figure]] = []
    for number in range(runs):
        first = number % len(names)
        rounds.append(found := {name: sides[name]() for name in (*names[first:], *names[:first])})
        each = "; ".join(f"{n} {found[n].wall:.1f} s, {found[n].cpu:.1f} CPU s" for n in sides)
        err.print(f"{title}, round {number + 1}: {each}; wall {found[two].wall / found[one].wall:.2f}")
    medians = {n: {f: median([getattr(p[n], f) for p in rounds]) for f in fields} for n in sides}
    by_round = {
        n: {f: [round(getattr(p[n], f) / getattr(p[one], f), 3) for p in rounds] for f in fields} for n in names[1:]
    }
    ratios = {n: {f: round(median(values), 3) for f, values in found.items()} for n, found in by_round.items()}
    err.print(f"\n[bold]{title}[/bold]: {records:,} records, {runs} rounds, medians")
    rows: list[dict[str, Any]] = [
        {"what": name, **{k: round(v, 1) for k, v in m.items()}, "records/s": round(records / m["wall"])}
        for name, m in medians.items()
    ]
    rows += [{"what": f"ratio {n}/{one}", **{k: f"{v:.2f}" for k, v in ratio.items()}} for n, ratio in ratios.items()]
    print_table(rows, ["what", *fields, "records/s"])
    judged = goal.judge(ratios[two]["wall"], f"{two}/{one} {ratios[two]['wall']:.2f}") if goal else {}
    found = [{n: asdict(figure) for n, figure in p.items()} for p in rounds]
    answer = {"title": title, "records": records, "rounds": found, **medians}
    return {**answer, "ratio": ratios, "ratio_by_round": by_round, **judged}
