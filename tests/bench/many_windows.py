"""Spark main: sliding windows of the same cached rows, by Spark's own operator and of panes in turn, in one session."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.cli.output import print_json
from sluice.pipeline import load
from sluice.pipeline.window import Window
from sluice_spark.engine.cores import cores
from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import run_main, session
from sluice_spark.windows.aggregate import windows_of
from sluice_spark.windows.decomposed import decompose
from sluice_spark.windows.paned import let_out, panes_of, windows_from

_WARM = 2
"""Rounds of both sides before one counts: Java compiles what runs often."""
_MADE = 1_000_000
"""Events of a shape that is made here, within four hours; windows of 60 minutes slide by one."""


def cpu() -> float:
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


def timed(made: Callable[[], DataFrame]) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds, that it takes to make windows and to look at each."""
    before, began = cpu(), time.monotonic()
    made().write.format("noop").mode("overwrite").save()
    return time.monotonic() - began, cpu() - before


def flights(spark: SparkSession, bootstrap: str, topic: str, schema: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    records = spark.read.format("kafka").options(**options).load()
    decoded = F.from_json(F.col("value").cast("string"), schema)
    return records.select(decoded.alias("row")).select("row.*")


def made_up(spark: SparkSession, keys: int) -> DataFrame:
    """Return events of so many keys, the same each time, with the columns of flights that windows ask for."""

    def below(limit: int, number: int) -> Any:
        return F.pmod(F.xxhash64("id", F.lit(number)), F.lit(limit))

    at = F.timestamp_millis(F.lit(1_772_323_200_000) + below(4 * 3_600_000, 0))
    numbers = (below(300, 2) - 60).cast("int").alias("dep_delay"), below(2500, 3).cast("int").alias("distance")
    return spark.range(_MADE).select(below(keys, 1).cast("string").alias("key"), at.alias("at"), *numbers)


def measured(spark: SparkSession, rows: DataFrame, window: Window, rounds: int) -> dict[str, Any]:
    """Make the windows of rows by both ways in turn, and return what each took."""
    rows = rows.repartition(cores(spark)).cache()
    count, latest = rows.agg(F.count("*"), F.max(F.unix_millis(window.time))).first() or (0, 0)
    how = decompose(spark, window.model_copy(update={"panes": "auto"}), rows.schema)
    ends = let_out(window, 0, latest + window.length // timedelta(milliseconds=1))
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
        order = list(sides) if number % 2 else list(sides)[::-1]
        took = {name: timed(sides[name]) for name in order}
        seconds = {name: round(took[name][0], 2) for name in sides}
        used = {f"{name} cpu": round(took[name][1], 2) for name in sides}
        if number >= _WARM:
            found.append({**seconds, **used, "cpu ratio": round(took["auto"][1] / took["off"][1], 3)})
    rows.unpersist()
    return {"records": count, "panes": panes, "windows": made["off"], "rounds": found}


def main() -> None:
    set_up()
    asked = json.loads(sys.argv[1])
    spark, window = session(), load(asked["pipeline"]).window
    assert window is not None
    # as in the batches of a stream
    spark.conf.set("spark.sql.shuffle.partitions", cores(spark))
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    minute = timedelta(minutes=1)
    minutes = window.model_copy(update={"time": "at", "size": 60 * minute, "slide": minute, "by": ("key",)})
    shapes = {"flights": (flights(spark, asked["bootstrap"], asked["topic"], asked["schema"]), window)}
    for keys in (1000, 48):
        shapes[f"{keys} keys"] = (made_up(spark, keys), minutes)
    print_json({name: measured(spark, *shape, asked["rounds"]) for name, shape in shapes.items()})


if __name__ == "__main__":
    run_main(main)
