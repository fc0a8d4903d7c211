"""``make bench``: whole cold processes in turn, on one broker in one session.

Reported are wall seconds, CPU seconds (user and system of the whole process tree, Spark's Python workers included, the
broker's not), the memory of the tree, and ratios round by round. Figures of one machine; only ratios travel.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.bench.ages import ages
from tests.bench.drains import also, batches, files, fixed, postgres, queue, shapes, split, volume
from tests.bench.harness import Bench, Options
from tests.bench.history import history
from tests.bench.lag import lag, many
from tests.bench.parts import intervals, judging, ledger
from tests.bench.recovery import hot, killed, redrive, wal
from tests.bench.wide import wide
from tests.bench.windowed import panes, windows

from sluice.cli.output import print_json

COMPARISONS = {
    comparison.__name__: comparison
    for comparison in (
        volume, shapes, batches, fixed, files, queue, postgres, also, wal, hot, killed, redrive, ledger, lag, many,
        history, ages, intervals, wide, split, judging, panes, windows,
    )
}  # fmt: skip


def main() -> None:
    """Run the comparisons; the last line on stdout is one JSON value."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth: to see that it works")
    parser.add_argument("--only", choices=COMPARISONS, action="append", help="only this one; may be given again")
    parser.add_argument("--runs", type=int, default=3, help="rounds of each comparison (3)")
    parser.add_argument("--records", type=int, default=5_000_000, help="records of the volume (5,000,000)")
    args = parser.parse_args()
    options = Options(1, 500_000, quick=True) if args.quick else Options(args.runs, args.records, quick=False)
    results = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        bench = Bench(Path(scratch))
        try:
            for name in args.only or COMPARISONS:
                results.append({"name": name, **COMPARISONS[name](bench, options)})
        finally:
            bench.broker.stop()
    print_json(results)


if __name__ == "__main__":
    main()
