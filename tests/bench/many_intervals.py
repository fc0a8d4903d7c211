"""Spark main: tables filled by live runs, and intervals replaced in them, all in one session; job.py, timed."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sluice.cli.output import print_json
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import run_main, session
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.interval import IntervalRun
from sluice_spark.runs.live import LiveRun


def main() -> None:
    set_up()
    home, ledger, spark = Home.from_env(), Ledger.open(), session()
    found: list[dict[str, Any]] = []
    for asked in json.loads(sys.argv[1])["tables"]:
        pipeline = load(asked["pipeline"])
        common = (ledger, home, lambda: spark, Recovery.REPLAY, None)
        LiveRun(RunContext(pipeline, "live", *common), pipeline.source.config.max_records_per_batch).execute()
        accounts, began = [], time.monotonic()
        for number, (start, end) in enumerate(asked["intervals"]):
            interval = Interval.parse(start, end)
            assert interval is not None
            accounts.append(IntervalRun(RunContext(pipeline, f"again-{number}", *common), interval).execute())
        found.append(
            {
                "seconds": round(time.monotonic() - began, 2),
                "read": sum(a["planned"] - a["absent"] for a in accounts),
                "inside": sum(a["written"] + a["quarantined"] for a in accounts),
            }
        )
    print_json(found)


if __name__ == "__main__":
    run_main(main)
