"""The application that spark-submit starts to decode records without writing any: a preview, or a dry run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.runs.preview import preview, still_refused


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="preview.py", description="Decode and transform records without writing any.")
    parser.add_argument("--pipeline", required=True, metavar="NAME_OR_PATH")
    parser.add_argument("--result", required=True, metavar="FILE", help="JSON output")
    parser.add_argument("--records", type=int, default=20, help="how many of the newest records")
    parser.add_argument("--quarantined", action="store_true", help="decode the quarantined records instead")
    parser.add_argument("--range", action="append", metavar="TOPIC:PARTITION:START-END", help="only these offsets")
    parser.add_argument("--of-run", help="only what this run refused")
    return parser.parse_args(argv)


def main() -> None:
    set_up()
    args = parse()
    pipeline, home = load(args.pipeline), Home.from_env()
    try:
        ranges = [OffsetRange.parse(text) for text in args.range] if args.range else None
    except ValueError as error:
        raise ConfigError(str(error), state="nothing was read or written", next_step="fix the range") from None
    if args.quarantined:
        found = still_refused(session(), pipeline, home, of_run=args.of_run, ranges=ranges)
    else:
        found = preview(session(), pipeline, home, args.records)
    Path(args.result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
