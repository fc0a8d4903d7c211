"""spark-submit's entry for one bounded run. Exit codes: ``sluice.errors.ExitCode``."""

from __future__ import annotations

import argparse
import json

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.recovery import Recovery
from sluice.spec import load
from sluice_spark.live import LiveRun
from sluice_spark.log import logger, set_up
from sluice_spark.quality.judge import Judge
from sluice_spark.session import run_main, session


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError(message, state="nothing was read or written", next_step=f"see {self.prog} --help")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = _Parser(prog="bounded_run.py", description="Drain what Kafka holds now into the sink, and judge it.")
    parser.add_argument(
        "--pipeline", required=True, metavar="NAME_OR_PATH", help="a name in include/pipelines, or a file"
    )
    parser.add_argument("--run", required=True, help="the run's id; another attempt uses the same")
    parser.add_argument(
        "--recovery", choices=[r.value for r in Recovery], help="instead of the pipeline file's strategy"
    )
    parser.add_argument("--max-records-per-batch", type=int, metavar="N", help="instead of the pipeline file's")
    parser.add_argument("--start", metavar="TS", help="with --end: the interval of record time (to come)")
    parser.add_argument("--end", metavar="TS")
    parser.add_argument("--no-validate", action="store_true", help="leave the run without a verdict")
    return parser.parse_args(argv)


def main() -> None:
    set_up()
    args = parse()
    pipeline = load(args.pipeline)
    recovery = Recovery(args.recovery) if args.recovery else pipeline.recovery
    untouched = "nothing was read or written"
    refusal = recovery.refusal(stateful=pipeline.stateful)
    if refusal:
        raise ConfigError(refusal, state=untouched, next_step="choose another strategy with --recovery")
    if args.start or args.end:
        raise ConfigError(
            "interval runs are not in this version", state=untouched, next_step="leave out --start and --end"
        )
    max_records = args.max_records_per_batch or pipeline.kafka.max_records_per_batch
    if max_records < 1:
        raise ConfigError(
            "--max-records-per-batch must be at least 1", state=untouched, next_step="give a positive number"
        )
    home = Home.from_env()
    judge = None if args.no_validate else Judge(pipeline, home, args.run)
    run = LiveRun(pipeline, args.run, Ledger.open(), home, session, recovery, judge, max_records)
    account = run.execute()
    logger.info("account %s", json.dumps(account))


if __name__ == "__main__":
    run_main(main)
