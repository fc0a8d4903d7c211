"""The application that spark-submit starts for a live or interval run. Exit codes: ``sluice.errors.ExitCode``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.request import RunRequest
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.interval import IntervalRun
from sluice_spark.runs.live import LiveRun
from sluice_spark.runs.run import Run
from sluice_spark.runs.window_interval import WindowIntervalRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="bounded_run.py",
        description="Process what the source holds now, or reprocess an interval of record time; then validate it.",
    )
    parser.add_argument(
        "--pipeline", required=True, metavar="NAME_OR_PATH", help="a name in include/pipelines, or a file"
    )
    RunRequest.add_to(parser)
    return parser.parse_args(argv)


def run_of(args: argparse.Namespace, open_session: Callable[[], SparkSession]) -> Run:
    """Return the requested run, not started yet.

    Raises
    ------
    ConfigError
        If the request is invalid.
    """
    pipeline = load(args.pipeline)
    request, home = RunRequest.parse(args, pipeline), Home.from_env()
    judge = Judge(pipeline, home, request.run_id) if request.validate else None
    recovery = request.recovery or pipeline.recovery
    context = RunContext(pipeline, request.run_id, Ledger.open(), home, open_session, recovery, judge, request.reason)
    if request.interval is not None:
        kind = IntervalRun if pipeline.window is None else WindowIntervalRun
        return kind(context, request.interval)
    return LiveRun(context, request.max_records_per_batch or pipeline.source.config.max_records_per_batch)


def main() -> None:
    set_up()
    account = run_of(parse(), session).execute()
    logger.info("account %s", json.dumps(account))


if __name__ == "__main__":
    run_main(main)
