"""The application that spark-submit starts for a reset. Exit codes: ``sluice.errors.ExitCode``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.reset import ResetRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="reset.py", description="Begin a pipeline in a new epoch, with a fresh checkpoint.")
    parser.add_argument("--pipeline", required=True, metavar="NAME_OR_PATH")
    parser.add_argument("--run", required=True, help="the run id; a retry uses the same one")
    parser.add_argument("--from", dest="begin", metavar="earliest|latest|TIME", help="by default, the position")
    parser.add_argument("--truncate", action="store_true", help="take the pipeline's rows out of the sink")
    parser.add_argument("--rebuild-state", action="store_true", help="make the state of windows or dedupe anew")
    parser.add_argument("--yes", action="store_true", help="also if something does not come back")
    parser.add_argument("--reason", required=True, help="why; recorded in the ledger")
    parser.add_argument("--result", type=Path, help="change nothing: write what would be done here, as JSON")
    return parser.parse_args(argv)


def run_of(args: argparse.Namespace, open_session: Callable[[], SparkSession]) -> ResetRun:
    """Return the requested run, not started yet.

    Raises
    ------
    ConfigError
        If the request is invalid.
    """
    pipeline = load(args.pipeline)
    context = RunContext(
        pipeline, args.run, Ledger.open(), Home.from_env(), open_session, pipeline.recovery, judge=None,
        reason=args.reason,
    )  # fmt: skip
    return ResetRun(context, args.begin, truncate=args.truncate, agreed=args.yes, rebuild=args.rebuild_state)


def main() -> None:
    set_up()
    args = parse()
    run = run_of(args, session)
    if args.result is not None:
        found = run.preview()
        args.result.write_text(json.dumps(found.as_dict() | {"given_up": list(found.given_up)}))
        return
    logger.info("account %s", json.dumps(run.execute()))


if __name__ == "__main__":
    run_main(main)
