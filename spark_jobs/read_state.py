"""The application that spark-submit starts to read which windows of a pipeline are open."""

from __future__ import annotations

import json
from pathlib import Path

from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.windows.state import open_windows


def main() -> None:
    set_up()
    parser = Parser(prog="read_state.py", description="Read which windows are open.")
    parser.add_argument("--checkpoint", required=True, metavar="PATH_OR_URL")
    parser.add_argument("--batch", required=True, type=int, help="a committed batch")
    parser.add_argument("--result", required=True, metavar="FILE", help="JSON output")
    args = parser.parse_args()
    found = open_windows(session(), args.checkpoint, args.batch)
    Path(args.result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
