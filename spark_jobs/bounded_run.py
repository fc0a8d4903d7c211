"""spark-submit's entry for one bounded run. Exit codes: ``sluice.errors.ExitCode``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from pyspark.sql import SparkSession

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.quality.judge import Judge
from sluice_spark.runs.interval import IntervalRun
from sluice_spark.runs.live import LiveRun
from sluice_spark.runs.run import Run


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="bounded_run.py",
        description="Drain what Kafka holds now into the sink, or replace an interval of record time in it; judge it.",
    )
    parser.add_argument(
        "--pipeline", required=True, metavar="NAME_OR_PATH", help="a name in include/pipelines, or a file"
    )
    parser.add_argument("--run", required=True, help="the run's id; another attempt uses the same")
    parser.add_argument(
        "--recovery", choices=[r.value for r in Recovery], help="instead of the pipeline file's strategy"
    )
    parser.add_argument("--max-records-per-batch", type=int, metavar="N", help="instead of the pipeline file's")
    parser.add_argument("--start", metavar="TS", help="with --end: the interval of record time to replace (ISO 8601)")
    parser.add_argument("--end", metavar="TS")
    parser.add_argument("--reason", help="why; kept in the ledger")
    parser.add_argument("--no-validate", action="store_true", help="leave the run without a verdict")
    return parser.parse_args(argv)


def run_of(args: argparse.Namespace, open_session: Callable[[], SparkSession]) -> Run:
    """Return the run that was asked for, not begun.

    Raises
    ------
    ConfigError
        When it cannot be meant.
    """
    pipeline = load(args.pipeline)
    home = Home.from_env()
    judge = None if args.no_validate else Judge(pipeline, home, args.run)
    common = (pipeline, args.run, Ledger.open(), home, open_session)
    asked = Recovery(args.recovery) if args.recovery else None
    interval = Interval.asked(pipeline, args.start, args.end, asked)
    if interval is not None:
        return IntervalRun(*common, Recovery.REPLAY, judge, interval, reason=args.reason)
    recovery, max_records = _checked(pipeline, asked, args.max_records_per_batch)
    return LiveRun(*common, recovery, judge, max_records, reason=args.reason)


def main() -> None:
    set_up()
    account = run_of(parse(), session).execute()
    logger.info("account %s", json.dumps(account))


def _checked(pipeline: Pipeline, recovery: Recovery | None, max_records: int | None) -> tuple[Recovery, int]:
    untouched = "nothing was read or written"
    strategy = recovery or pipeline.recovery
    refusal = strategy.refusal(aggregates=pipeline.aggregates)
    if refusal:
        raise ConfigError(refusal, state=untouched, next_step="choose another strategy with --recovery")
    size = pipeline.source.config.max_records_per_batch if max_records is None else max_records
    if size < 1:
        raise ConfigError(
            "--max-records-per-batch must be at least 1", state=untouched, next_step="give a positive number"
        )
    return strategy, size


if __name__ == "__main__":
    run_main(main)
