"""Spark main: sliding windows of the same cached rows, by Spark's own operator and of panes in turn, in one session."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.pipeline import load
from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import run_main, session
from sluice_spark.windows.aggregate import windows_of
from sluice_spark.windows.decomposed import decompose
from sluice_spark.windows.paned import closing, panes_of, windows_from


def timed(made: Callable[[], DataFrame]) -> float:
    """Return the seconds that it takes to make windows and to look at each."""
    began = time.monotonic()
    made().write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def main() -> None:
    set_up()
    parser = argparse.ArgumentParser()
    for name in ("--pipeline", "--found", "--bootstrap", "--topic", "--schema"):
        parser.add_argument(name, required=True)
    parser.add_argument("--rounds", required=True, type=int)
    args = parser.parse_args()
    spark, window = session(), load(args.pipeline).window
    assert window is not None
    options = {"kafka.bootstrap.servers": args.bootstrap, "subscribe": args.topic}
    records = spark.read.format("kafka").options(**options).load()
    decoded = F.from_json(F.col("value").cast("string"), args.schema)
    rows = records.select(decoded.alias("row")).select("row.*").cache()
    count, latest = rows.agg(F.count("*"), F.max(F.unix_millis(window.time))).first() or (0, 0)
    how = decompose(spark, window.model_copy(update={"panes": "auto"}), rows.schema)
    ends = closing(window, 0, latest + window.length // timedelta(milliseconds=1))
    assert ends is not None
    schema = windows_of(rows, window).schema

    def spark_own() -> DataFrame:
        return windows_of(rows, window)

    def of_panes() -> DataFrame:
        return windows_from(panes_of(rows, window, how), None, window, how, ends, schema)

    sides = {"off": spark_own, "auto": of_panes}
    made = {name: side().count() for name, side in sides.items()}  # warms both up
    if made["off"] != made["auto"]:
        raise SystemExit(f"panes made other windows: {made}")
    rounds = []
    for number in range(args.rounds):
        order = list(sides) if number % 2 else list(sides)[::-1]
        found = {name: round(timed(sides[name]), 3) for name in order}
        rounds.append({name: found[name] for name in sides})
    answer = {"records": count, "windows": made["off"], "rounds": rounds}
    Path(args.found).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
