"""Files of a folder as the source, against a bare file stream of Spark."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.bench.harness import Bench, Figure, Goal, Options, compare
from tests.bench.shapes import SCHEMA

from sluice.cli.output import err

__all__ = ["files"]

_FILES = 100
_COUNTRIES = ("DE", "FR", "IT", "ES", "PL")


def files(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a folder of a hundred files of JSON lines, not judged."""
    folder = bench.scratch / "inbox"
    err.print(f"filling {_FILES} files with {options.records:,} records")
    _fill(folder, options.records)

    def ours() -> Figure:
        source = {"file": {"path": str(folder), "format": "json", "settle": "0s"}}
        file = bench.pipeline("", bench.fresh("ours"), source=source)
        return bench.run(file, "--no-validate").figure

    def bare() -> Figure:
        return bench.bare("bare_files.py", str(folder), SCHEMA, str(bench.scratch / bench.fresh("bare")))

    sides = {"bare": bare, "ours": ours}
    title = "files of JSON lines: drain, not judged"
    return compare(title, options.records, options.runs, sides, goal=Goal("of the bare file stream", 1.0))


def _fill(folder: Path, records: int) -> None:
    """Write records like those of the small shape."""
    folder.mkdir()
    begin, each = datetime(2026, 1, 1, tzinfo=UTC), records // _FILES
    for number in range(_FILES):
        with (folder / f"part-{number:03d}.json").open("w") as out:
            for n in range(number * each, (number + 1) * each):
                row = {
                    "id": n, "ts": (begin + timedelta(seconds=n // 60)).isoformat(timespec="milliseconds"),
                    "amount": n * 7921 % 100_000 / 100, "country": _COUNTRIES[n % 5],
                    "payload": hashlib.md5(b"%d" % n, usedforsecurity=False).hexdigest(),
                }  # fmt: skip
                out.write(json.dumps(row) + "\n")
