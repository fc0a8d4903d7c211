"""The application that spark-submit starts to read what a pipeline keeps open between its runs."""

from __future__ import annotations

import json
from pathlib import Path

from sluice_spark.engine.logs import set_up
from sluice_spark.engine.session import Parser, run_main, session
from sluice_spark.windows.state import PaneSpans, held_keys, of_key, of_processor, open_windows, remembered_keys


def main() -> None:
    set_up()
    parser = Parser(prog="read_state.py", description="Read which windows are open, or which keys are remembered.")
    parser.add_argument("--checkpoint", required=True, metavar="PATH_OR_URL")
    parser.add_argument("--batch", required=True, type=int, help="a committed batch")
    parser.add_argument("--result", required=True, metavar="FILE", help="JSON output")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--dedupe", action="store_true", help="the pipeline has dedupe, and no window")
    kinds.add_argument("--processor", action="store_true", help="the pipeline has a processor, and no window")
    parser.add_argument(
        "--panes",
        type=int,
        nargs=3,
        metavar="MS",
        help="windows are made of panes: their size and slide, the watermark",
    )
    parser.add_argument(
        "--of", metavar="JSON", help="only one key: names of its columns, values of some, maximum of rows"
    )
    args = parser.parse_args()
    panes = PaneSpans(*args.panes) if args.panes else None
    if args.of:
        names, wanted, limit = json.loads(args.of)
        where = session(), args.checkpoint, args.batch, names, wanted, limit
        found = of_processor(*where) if args.processor else of_key(*where, panes)
    elif args.processor:
        found = held_keys(session(), args.checkpoint, args.batch)
    elif args.dedupe:
        found = remembered_keys(session(), args.checkpoint, args.batch)
    else:
        found = open_windows(session(), args.checkpoint, args.batch, panes)
    Path(args.result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
