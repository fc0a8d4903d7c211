"""Prints tables and JSON. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = [
    "COUNTS",
    "err",
    "of_tables",
    "print_json",
    "print_table",
    "printed",
    "say_empty",
]

_FEW = 3
"""Columns in which folded text can still be read."""

_PLACES = ("partition", "start", "end", "position")
"""Columns whose zero says where something is."""

COUNTS = ("planned", "written", "filtered", "quarantined", "absent", "lost")

# in a pipe, tables may be wider than a terminal
out = Console(width=None if sys.stdout is not None and sys.stdout.isatty() else 240)
err = Console(stderr=True, highlight=False, soft_wrap=True)


_printed = 0


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    global _printed
    print(json.dumps(value, default=str), flush=True)
    _printed += 1


def printed() -> int:
    """Return how many JSON values this process has printed."""
    return _printed


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as a table: numbers right-aligned, integers with thousands separators, None as a dash.

    On a terminal that is too narrow, each row is a paragraph: its first value, and below it the others by name, without
    counts that are zero.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        numeric = bool(rows) and all(isinstance(r.get(column), int | float | None) for r in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(c)) for c in columns))
    if not out.is_terminal or not _folds(rows, columns, out.width):
        out.print(table)
        return
    for row in rows:
        out.print(_cell(row.get(columns[0])), style="bold", soft_wrap=True, highlight=False)
        values = [(c, row.get(c)) for c in columns[1:]]
        told = [f"{c} {_cell(value)}" for c, value in values if value or (value is not None and c in _PLACES)]
        for line in _lines(told, out.width - 2):
            out.print(f"  {line}", soft_wrap=True, highlight=False)


def _folds(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int) -> bool:
    """Return whether a table would be wider than this, so that its texts would be folded within their columns."""
    widths = [max([len(c), *(len(_cell(row.get(c))) for row in rows)]) for c in columns]
    return len(rows) > 0 and sum(widths) + 2 * (len(columns) - 1) > width and len(columns) > _FEW


def _lines(words: Sequence[str], width: int) -> list[str]:
    """Join words to lines of at most this width; a longer word is a line of its own."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 3 + len(word) <= width:
            lines[-1] += f" · {word}"
        else:
            lines.append(word)
    return lines


def of_tables(read: Mapping[str, Sequence[int]]) -> str:
    """Return in words which versions of joined tables a run read (``tables`` of its account)."""
    return ", ".join(
        f"{name} at version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"
        for name, versions in read.items()
    )


def say_empty(pipeline: str | None, what: str = "run") -> None:
    """Say on stderr that the ledger has nothing to show, and which ledger that is: the home may be a wrong one."""
    from sluice.home import Home
    from sluice.ledger.store import masked

    ledger = masked(Home.from_env().ledger_url)
    err.print(f"no {what}{f' of {pipeline}' if pipeline else ''} in the ledger {ledger}", markup=False)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else escape(str(value))
