"""The application that spark-submit starts for a redrive. Exit codes: ``sluice.errors.ExitCode``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.redrive import RedriveRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="redrive.py", description="Redrive lost ranges or quarantined records, exactly once.")
    parser.add_argument("--pipeline", required=True, metavar="NAME_OR_PATH")
    parser.add_argument("--run", required=True, help="the run id; a retry uses the same one")
    parser.add_argument("--range", action="append", metavar="TOPIC:PARTITION:START-END", help="only these offsets")
    parser.add_argument("--of-run", help="only what this run lost or quarantined")
    parser.add_argument("--quarantined", action="store_true", help="redrive quarantined records instead of lost ranges")
    parser.add_argument("--drop", action="store_true", help="take quarantined records out, and write none of them")
    parser.add_argument("--rule", help="only quarantined records that broke this rule")
    parser.add_argument("--before", type=datetime.fromisoformat, help="only quarantined records of an earlier time")
    parser.add_argument("--reason", help="why they are dropped; recorded in the ledger")
    parser.add_argument("--no-validate", action="store_true", help="skip the validation; the run gets no verdict")
    return parser.parse_args(argv)


def run_of(args: argparse.Namespace, open_session: Callable[[], SparkSession]) -> RedriveRun:
    """Return the requested run, not started yet.

    Raises
    ------
    ConfigError
        If the request is invalid.
    """
    pipeline, home = load(args.pipeline), Home.from_env()
    try:
        ranges = [OffsetRange.parse(text) for text in args.range] if args.range else None
    except ValueError as error:
        raise ConfigError(str(error), state="nothing was read or written", next_step="fix the range") from None
    judge = None if args.no_validate else Judge(pipeline, home, args.run)
    context = RunContext(pipeline, args.run, Ledger.open(), home, open_session, pipeline.recovery, judge, args.reason)
    return RedriveRun(context, ranges, args.of_run, args.quarantined or args.drop, args.drop, args.rule, args.before)


def main() -> None:
    set_up()
    logger.info("account %s", json.dumps(run_of(parse(), session).execute()))


if __name__ == "__main__":
    run_main(main)
