"""The application that spark-submit starts for a retraction. Exit codes: ``sluice.errors.ExitCode``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.retract import RetractRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="retract.py", description="Take rows out of the sink, and open their offsets as lost.")
    parser.add_argument("--pipeline", required=True, metavar="NAME_OR_PATH")
    parser.add_argument("--run", required=True, help="the run id; a retry uses the same one")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--of-run", help="what this run wrote")
    what.add_argument("--range", action="append", metavar="TOPIC:PARTITION:START-END", help="the rows of these offsets")
    parser.add_argument("--reason", required=True, help="why; recorded in the ledger")
    parser.add_argument("--result", type=Path, help="change nothing: write what would be retracted here, as JSON")
    return parser.parse_args(argv)


def run_of(args: argparse.Namespace, open_session: Callable[[], SparkSession]) -> RetractRun:
    """Return the requested run, not started yet.

    Raises
    ------
    ConfigError
        If the request is invalid.
    """
    pipeline, home = load(args.pipeline), Home.from_env()
    try:
        ranges = [OffsetRange.parse(text) for text in args.range or ()]
    except ValueError as error:
        raise ConfigError(str(error), state="nothing was read or written", next_step="fix the range") from None
    context = RunContext(
        pipeline, args.run, Ledger.open(), home, open_session, pipeline.recovery, judge=None, reason=args.reason
    )
    return RetractRun(context, args.of_run, ranges)


def main() -> None:
    set_up()
    args = parse()
    run = run_of(args, session)
    if args.result is not None:
        args.result.write_text(json.dumps([part.as_dict() for part in run.preview()]))
        return
    logger.info("account %s", json.dumps(run.execute()))


if __name__ == "__main__":
    run_main(main)
