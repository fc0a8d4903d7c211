"""Spark main: many runs of one pipeline, each fed with records of its own; what job.py does, in a loop."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from sluice.home import Home
from sluice.ledger import Ledger
from sluice.local.kafka import Topics
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import run_main, session
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.live import LiveRun

RECORDS = 100
"""Of a run."""

_BROKEN = 5
"""One record of each so manieth run does not decode."""


def broken(number: int) -> int:
    """Return how many records of a run do not decode."""
    return int(number % _BROKEN == 0)


def feed(producer: Any, topic: str, number: int) -> None:
    for n in range(number * RECORDS, (number + 1) * RECORDS):
        country = ["DE", "FR", "IT", "ES", "PL"][n % 5]
        record = {"id": n, "ts": "2026-01-01T00:00:00Z", "amount": n % 1000, "country": country, "payload": f"{n:x}"}
        value = '{"id": ' if n % RECORDS < broken(number) else json.dumps(record)
        producer.send(topic, value=value.encode(), partition=n % 4)
    producer.flush()


def main() -> None:
    set_up()
    asked = json.loads(sys.argv[1])
    pipeline, home = load(asked["pipeline"]), Home.from_env()
    kept: list[SparkSession] = []

    def open_session() -> SparkSession:
        if not kept:
            kept.append(session())
        return kept[0]

    with Topics(asked["bootstrap"]).producer() as producer:
        for number in range(asked["first"], asked["last"] + 1):
            began = time.monotonic()
            feed(producer, asked["topic"], number)
            run = f"run-{number:04d}"
            judge = Judge(pipeline, home, run) if number >= asked["judged_from"] else None
            batch = pipeline.source.config.max_records_per_batch
            recovery = Recovery(asked["recovery"])
            context = RunContext(pipeline, run, Ledger.open(), home, open_session, recovery, judge)
            LiveRun(context, batch).execute()
            logger.info("%s took %.2f s", run, time.monotonic() - began)


if __name__ == "__main__":
    run_main(main)
