"""Whether a wide table of many small files costs its next run anything, against a table that was just made."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.transaction import AddAction
from tests.bench.harness import Bench, Figure, Goal, Options, Ran, compare, median
from tests.bench.shapes import RECORDS, SCHEMA, feed

from sluice.cli.output import err, print_table

_FILES, _COLUMNS = 50_000, 60

_PAIRS = 5
_AT_ONCE = 5_000
_TAIL = 15
"""Commits since the log's last checkpoint, a run's each: half of what there may be."""

_SHOWN = 32
"""Columns whose statistics a commit has, beside our own."""


def wide(bench: Bench, options: Options) -> dict[str, Any]:
    """Run two pipelines in turn that are alike but for the files in their tables."""
    count = _FILES // 10 if options.quick else _FILES
    fillers = tuple(f"c{n:02d}" for n in range(len(SCHEMA.split(",")), _COLUMNS))
    schema = ", ".join([SCHEMA, *(f"{name} BIGINT" for name in fillers)])
    files = {name: bench.pipeline(name, name, decode={"json": {"schema": schema}}) for name in ("new", "old")}
    runs: dict[str, list[Ran]] = {name: [] for name in files}

    def run(name: str) -> Figure:
        number = len(runs[name])
        with bench.topics.producer() as producer:
            feed(producer, name, number, bad=False, more=fillers)
        ran = bench.run(files[name], "--run", f"run-{number:06d}")
        runs[name].append(ran.check(written=RECORDS, verdict="passed"))
        return ran.figure

    for name in files:
        bench.topics.create(name, 4, {"retention.ms": "-1"})
        run(name)
    _fill(bench.home / "old", count)
    for name in files:
        run(name)  # what a run does once for a table that others wrote to
    found = compare(
        f"a table of {count:,} files and {_COLUMNS} columns against a new one",
        RECORDS,
        min(options.runs, 1) if options.quick else _PAIRS,
        {name: partial(run, name) for name in files},
        goal=Goal("old / new wall", 1.2),
    )
    phases = []
    for name, (*_, last) in runs.items():
        spent = {p: round(median([ran.phases[p] for ran in runs[name][2:]]), 2) for p in last.phases}
        phases.append({"of": name, **spent})
    print_table(phases, list(phases[0]))
    newest = max((bench.home / "old/_delta_log").glob("*.checkpoint.parquet"))
    size = round(newest.stat().st_size / 1e6, 1)
    err.print(f"the log's checkpoint has {size:,} MB")
    return {**found, "files": count, "columns": _COLUMNS, "phases": phases, "checkpoint_mb": size}


def _fill(path: Path, count: int) -> None:
    """Enter files into a table's log as so many runs would have; nobody may open them, and none is there."""
    table = DeltaTable(str(path))
    kind = table.schema()
    names = [f.name for f in kind.fields]
    shown = {name: n for n, name in enumerate(names[:_SHOWN]) if name.startswith("c") and name != "country"}

    def entry(n: int) -> AddAction:
        moment = "2025-01-01T00:00:00.000Z"
        low: dict[str, Any] = {"id": n, "ts": moment, "amount": 1.5, "country": "DE", "payload": "a"}
        low |= {"_topic": "old", "_partition": n % 4, "_offset": n * 10 + (1 << 40), "_run": f"earlier-{n // 8:06d}"}
        low |= {**{name: n + k for name, k in shown.items()}, "_timestamp": moment}
        high = {**low, "_offset": low["_offset"] + 9, "country": "PL", "amount": 999.5}
        stats = {"numRecords": 10, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
        folder = f"batches/old-e0-{n // 8:06d}-0a1b2c3d"
        return AddAction(f"{folder}/part-{n % 8:05d}.snappy.parquet", 3_000, {}, 1, True, json.dumps(stats))

    err.print(f"entering {count:,} files")
    last = count - 8 * _TAIL
    for begin, end, size in ((0, last, _AT_ONCE), (last, count, 8)):
        for first in range(begin, end, size):
            actions = [entry(n) for n in range(first, min(first + size, end))]
            DeltaTable(str(path)).create_write_transaction(actions, "append", kind, [])
        if end == last:
            DeltaTable(str(path)).create_checkpoint()
