"""Prints tables and JSON. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["COUNTS", "err", "print_json", "print_table", "say_empty"]

COUNTS = ("planned", "written", "filtered", "quarantined", "absent", "lost")

# in a pipe, tables may be wider than a terminal
out = Console(width=None if sys.stdout.isatty() else 240)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    print(json.dumps(value, default=str), flush=True)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as a table: numbers right-aligned, integers with thousands separators, None as a dash."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        numeric = bool(rows) and all(isinstance(r.get(column), int | float | None) for r in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(c)) for c in columns))
    out.print(table)


def say_empty(pipeline: str | None) -> None:
    """Say on stderr that the ledger has nothing to show, and which ledger that is: the home may be a wrong one."""
    from sqlalchemy import make_url

    from sluice.home import Home

    ledger = make_url(Home.from_env().ledger_url).render_as_string(hide_password=True)
    err.print(f"no run{f' of {pipeline}' if pipeline else ''} in the ledger {ledger}", markup=False)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else escape(str(value))
