"""The application that spark-submit starts for a failover. Exit codes: ``sluice.errors.ExitCode``."""

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
from sluice_spark.runs.failover import FailoverRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="failover.py", description="Let a pipeline go on with another cluster.")
    parser.add_argument("--pipeline", required=True, metavar="NAME_OR_PATH")
    parser.add_argument("--run", required=True, help="the run id; a retry uses the same one")
    parser.add_argument("--to", required=True, metavar="CONNECTION", help="the cluster to go on with")
    parser.add_argument("--reason", required=True, help="why; recorded in the ledger")
    parser.add_argument("--result", type=Path, help="change nothing: write what would be done here, as JSON")
    return parser.parse_args(argv)


def run_of(args: argparse.Namespace, open_session: Callable[[], SparkSession]) -> FailoverRun:
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
    return FailoverRun(context, to=args.to)


def main() -> None:
    set_up()
    args = parse()
    run = run_of(args, session)
    if args.result is not None:
        args.result.write_text(json.dumps(run.preview().as_dict()))
        return
    logger.info("account %s", json.dumps(run.execute()))


if __name__ == "__main__":
    run_main(main)
