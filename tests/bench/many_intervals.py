"""Spark main: intervals of one pipeline, one after the other in one session; what bounded_run.py does, in a loop."""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from sluice.home import Home
from sluice.interval import Interval
from sluice.ledger import Ledger
from sluice.recovery import Recovery
from sluice.spec import load
from sluice_spark.interval import IntervalRun
from sluice_spark.log import logger, set_up
from sluice_spark.session import run_main, session


def main() -> None:
    """Replace what argv names: the pipeline file, then start and end of each interval."""
    set_up()
    pipeline, home = load(sys.argv[1]), Home.from_env()
    kept: SparkSession = session()
    for number, (start, end) in enumerate(zip(sys.argv[2::2], sys.argv[3::2], strict=True)):
        interval = Interval.parse(start, end)
        began = time.monotonic()
        run = IntervalRun(
            pipeline, f"{number}-{began}", Ledger.open(), home, lambda: kept, Recovery.REPLAY, None, interval
        )  # fmt: skip
        account = run.execute()
        told = {"seconds": time.monotonic() - began, **{k: account[k] for k in ("planned", "written", "quarantined")}}
        logger.info("interval %s", json.dumps(told))


if __name__ == "__main__":
    run_main(main)
