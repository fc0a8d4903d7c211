"""Spark mains that do in one session, again and again, what job.py does once: ``{"loop": its name, …}``."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.bench.shapes import feed

from sluice.cli.output import print_json
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.local.kafka import Topics
from sluice.pipeline import load
from sluice.pipeline.suite import Suite
from sluice.pipeline.window import Window
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice_spark.engine.cores import cores
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import run_main, session
from sluice_spark.quality import judge as judging
from sluice_spark.quality.gx_project import import_gx
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.interval import IntervalRun
from sluice_spark.runs.live import LiveRun
from sluice_spark.runs.tables import Tables
from sluice_spark.windows.aggregate import windows_of
from sluice_spark.windows.decomposition import decompose
from sluice_spark.windows.panes import ends_to_emit, panes_of, windows_from


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, and what it returned."""
    began = time.monotonic()
    found = call()
    return time.monotonic() - began, found


def runs(asked: dict[str, Any]) -> None:
    """Make many runs of one pipeline, each fed with records of its own."""
    pipeline, home = load(asked["pipeline"]), Home.from_env()
    with Topics(asked["bootstrap"]).producer() as producer:
        for number in range(asked["first"], asked["last"] + 1):
            began, run = time.monotonic(), f"run-{number:04d}"
            feed(producer, asked["topic"], number)
            judge = judging.Judge(pipeline, home, run) if number >= asked["judged_from"] else None
            context = RunContext(pipeline, run, Ledger.open(), home, session, Recovery(asked["recovery"]), judge)
            LiveRun(context, pipeline.source.config.max_records_per_batch).execute()
            logger.info("%s took %.2f s", run, time.monotonic() - began)


def intervals(asked: dict[str, Any]) -> None:
    """Fill tables by live runs, and replace intervals in them."""
    found: list[dict[str, Any]] = []
    common = (Ledger.open(), Home.from_env(), session, Recovery.REPLAY, None)
    for table in asked["tables"]:
        pipeline = load(table["pipeline"])
        LiveRun(RunContext(pipeline, "live", *common), pipeline.source.config.max_records_per_batch).execute()
        accounts, began = [], time.monotonic()
        for number, ends in enumerate(table["intervals"]):
            interval = Interval.parse(*ends)
            assert interval is not None
            accounts.append(IntervalRun(RunContext(pipeline, f"again-{number}", *common), interval).execute())
        read = sum(a["planned"] - a["absent"] for a in accounts)
        inside = sum(a["written"] + a["quarantined"] for a in accounts)
        found.append({"seconds": round(time.monotonic() - began, 2), "read": read, "inside": inside})
    print_json(found)


def judgements(asked: dict[str, Any]) -> None:
    """Let Sluice and plain Great Expectations judge a run's rows in turn."""
    pipeline, home, spark = load(asked["pipeline"]), Home.from_env(), session()
    import_gx()
    from tests.bench.bare_gx import validate

    sink = Tables.of(pipeline, home, Ledger.open().offsets.epoch(pipeline.name)).sink
    suite = Suite.of(pipeline)
    assert suite is not None

    def plain() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            return validate(sink.rows_of(spark, [asked["run"]])[0], list(suite.expectations), folder)

    def ours() -> bool:
        return judging.Judge(pipeline, home, asked["run"]).judge(spark, sink, [asked["run"]]).verdict == "passed"

    sides, rounds = {"plain": plain, "ours": ours}, []
    for number in range(asked["rounds"] + 1):
        order = list(sides) if number % 2 else list(sides)[::-1]
        found = {name: timed(sides[name]) for name in order}
        if not all(passed for _, passed in found.values()):
            raise SystemExit(f"not what was to be measured: {found}")
        rounds.append({name: round(seconds, 3) for name, (seconds, _) in found.items()})
    _store(Path(home.data_docs) / pipeline.name, asked["stored"])
    docs: dict[str, list[float]] = {"seconds": [], "cpu": [], "judging": []}
    build = judging.build

    def watched(*arguments: Any) -> str:
        before = time.process_time()
        seconds, index = timed(lambda: build(*arguments))
        docs["seconds"].append(round(seconds, 3))
        docs["cpu"].append(round(time.process_time() - before, 3))
        return str(index)

    judging.build = watched
    docs["judging"] = [round(timed(ours)[0], 3) for _ in range(3)]
    # the first round warmed both up
    print_json({"rounds": rounds[1:], "data_docs": {"stored": asked["stored"], **docs}})


def _store(folder: Path, count: int) -> None:
    """Store the newest result under the names of so many earlier runs, with their pages."""
    uncommitted = folder / "gx" / "uncommitted"
    for parent in (uncommitted / "validations", uncommitted / "data_docs" / "local_site" / "validations"):
        for suite in parent.glob("*/"):
            model = max((p for p in suite.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
            for number in range(count):
                shutil.copytree(model, suite / f"earlier-{number:06d}")


_WARM = 2
"""Rounds of both sides before one counts: Java compiles what runs often."""
_MADE = 1_000_000
"""Events of a shape that is made here, within four hours; windows of 60 minutes slide by one."""


def windows(asked: dict[str, Any]) -> None:
    """Make sliding windows of the same cached rows by Spark's own operator and of panes in turn."""
    spark, window = session(), load(asked["pipeline"]).window
    assert window is not None
    # as in the batches of a stream
    spark.conf.set("spark.sql.shuffle.partitions", cores(spark))
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    options = {"kafka.bootstrap.servers": asked["bootstrap"], "subscribe": asked["topic"]}
    value = F.from_json(F.col("value").cast("string"), asked["schema"])
    flights = spark.read.format("kafka").options(**options).load().select(value.alias("row")).select("row.*")
    minute = timedelta(minutes=1)
    minutes = window.model_copy(update={"time": "at", "size": 60 * minute, "slide": minute, "by": ("key",)})
    shapes = {"flights": (flights, window)}
    shapes |= {f"{keys} keys": (_made_up(spark, keys), minutes) for keys in (1000, 48)}
    print_json({name: _measured(spark, *shape, asked["rounds"]) for name, shape in shapes.items()})


def _made_up(spark: SparkSession, keys: int) -> DataFrame:
    """Return events of so many keys, the same each time, with the columns of flights that windows ask for."""

    def below(limit: int, number: int) -> Any:
        return F.pmod(F.xxhash64("id", F.lit(number)), F.lit(limit))

    at = F.timestamp_millis(F.lit(1_772_323_200_000) + below(4 * 3_600_000, 0))
    numbers = (below(300, 2) - 60).cast("int").alias("dep_delay"), below(2500, 3).cast("int").alias("distance")
    return spark.range(_MADE).select(below(keys, 1).cast("string").alias("key"), at.alias("at"), *numbers)


def _measured(spark: SparkSession, rows: DataFrame, window: Window, rounds: int) -> dict[str, Any]:
    """Make the windows of rows by both ways in turn, and return what each took."""
    rows = rows.repartition(cores(spark)).cache()
    count, latest = rows.agg(F.count("*"), F.max(F.unix_millis(window.time))).first() or (0, 0)
    how = decompose(spark, window.model_copy(update={"panes": "auto"}), rows.schema)
    ends = ends_to_emit(window, 0, latest + window.length // timedelta(milliseconds=1))
    assert ends is not None
    schema = windows_of(rows, window).schema
    sides: dict[str, Callable[[], DataFrame]] = {
        "off": lambda: windows_of(rows, window),
        "auto": lambda: windows_from(panes_of(rows, window, how), None, window, how, ends, schema),
    }
    made = {name: side().count() for name, side in sides.items()}
    if made["off"] != made["auto"]:
        raise SystemExit(f"panes made other windows: {made}")
    panes = panes_of(rows, window, how).count()
    found = []
    for number in range(_WARM + rounds):
        took: dict[str, tuple[float, float]] = {}
        for name in sides if number % 2 else reversed(sides):
            before, began = _cpu(), time.monotonic()
            sides[name]().write.format("noop").mode("overwrite").save()  # looks at each
            took[name] = time.monotonic() - began, _cpu() - before
        if number >= _WARM:
            seconds = {name: round(took[name][0], 2) for name in sides}
            used = {f"{name} cpu": round(took[name][1], 2) for name in sides}
            found.append({**seconds, **used, "cpu ratio": round(took["auto"][1] / took["off"][1], 3)})
    rows.unpersist()
    return {"records": count, "panes": panes, "windows": made["off"], "rounds": found}


def _cpu() -> float:
    """Return the CPU seconds of the JVM, from which this process comes, and of all of its Python workers."""
    java = psutil.Process().parent()
    assert java is not None
    used = 0.0
    for process in [java, *java.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        own = times.user + times.system
        used += own if process == java else own + times.children_user + times.children_system
    return used


def main() -> None:
    set_up()
    asked = json.loads(sys.argv[1])
    {loop.__name__: loop for loop in (runs, intervals, judgements, windows)}[asked["loop"]](asked)


if __name__ == "__main__":
    run_main(main)
