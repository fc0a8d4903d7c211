"""What the ledger costs a batch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.bench.harness import Bench, Goal, Options, median
from tests.fixtures.postgres import binaries, server

from sluice.cli.output import err, print_table

__all__ = ["ledger"]

_BATCHES = 50
_RECORDS = 5_000


def ledger(bench: Bench, options: Options) -> dict[str, Any]:
    """Run 50 small batches with the ledger in SQLite, and in PostgreSQL when it is here."""
    topic = bench.topic("small", _RECORDS)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        urls: dict[str, dict[str, str]] = {"SQLite": {}}
        programs = binaries()
        if programs:
            running = stack.enter_context(server(programs, durable=True))
            urls["PostgreSQL"] = {"SLUICE_LEDGER_URL": f"{running.url}/postgres"}
        else:
            err.print("no PostgreSQL server binaries here: SQLite alone")
        for _ in range(options.runs):
            for kind, env in urls.items():
                name = bench.fresh("ledger")
                file = bench.pipeline(topic, name)
                cap = str(_RECORDS // _BATCHES)
                ran = bench.run(file, "--no-validate", "--max-records-per-batch", cap, env=env)
                found.setdefault(kind, []).append(1000 * ran.phases["ledger"] / len(ran.batches))
                err.print(f"ledger, {kind}: {found[kind][-1]:.1f} ms a batch, {len(ran.batches)} batches")
                bench.remove(name)
    rows = [{"ledger": kind, "ms a batch": round(median(values), 1)} for kind, values in found.items()]
    print_table(rows, ["ledger", "ms a batch"])
    return {
        "title": f"ledger: {_BATCHES} small batches",
        "ms_a_batch": {kind: [round(v, 1) for v in values] for kind, values in found.items()},
        "medians": rows,
        **Goal("ms a batch", 50).judge(max(row["ms a batch"] for row in rows)),
    }
