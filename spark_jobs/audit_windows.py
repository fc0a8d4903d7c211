"""The application that spark-submit starts to recompute windows from their records, for a deep audit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.audit.windows import Plan
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.window_audit import recompute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="audit_windows.py", description="Recompute windows and compare them with the table.")
    parser.add_argument("--pipeline", required=True, metavar="NAME_OR_PATH")
    parser.add_argument("--plan", required=True, metavar="FILE", help="JSON input: what is recomputed")
    parser.add_argument("--result", required=True, metavar="FILE", help="JSON output")
    return parser.parse_args(argv)


def audited(args: argparse.Namespace, open_session: Callable[[], SparkSession]) -> None:
    """Recompute what the plan says, and write what was found."""
    plan = Plan(**json.loads(Path(args.plan).read_text(encoding="utf-8")))
    context = RunContext(
        load(args.pipeline), "audit", Ledger.open(), Home.from_env(), open_session, Recovery.REPLAY, judge=None
    )
    with context.resources:
        found = recompute(context, plan)
    Path(args.result).write_text(json.dumps(asdict(found)), encoding="utf-8")


def main() -> None:
    set_up()
    audited(parse(), session)


if __name__ == "__main__":
    run_main(main)
