"""Small tables for task logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.ranges import Counts, RangeAccount
from sluice.text import length

__all__ = ["account_table", "lag_table", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return aligned text; numbers to the right, everything else to the left."""
    body = [list(row) for row in rows]
    cells = [list(head)] + [[_cell(value) for value in row] for row in body]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    right = [bool(body) and all(isinstance(row[i], int | float) for row in body) for i in range(len(head))]

    def line(row: list[str]) -> str:
        parts = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *(line(row) for row in cells[1:])])


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def lag_table(backlog: Mapping[str, Any]) -> str:
    """Return the lag per partition, from :meth:`sluice.lag.Backlog.brief`; ages in words."""
    keys = ("topic", "partition", "status", "position", "start", "end", "lag", "age", "lost")
    parts = [part | {"age": None if part["age"] is None else length(part["age"])} for part in backlog["partitions"]]
    others = f"\nand {backlog['others']:,} partitions with a smaller lag" if backlog.get("others") else ""
    return table(keys, ([part[key] for key in keys] for part in parts)) + others


def account_table(accounts: Iterable[RangeAccount]) -> str:
    """Return the split of each range, and the sum below it."""
    items = list(accounts)
    names = ("planned", "written", "filtered", "quarantined", "absent", "lost")
    rows: list[list[Any]] = [
        [a.range.topic, str(a.range.partition), a.range.start, a.range.end, *(a.counts.as_dict()[n] for n in names)]
        for a in items
    ]
    total = sum((a.counts for a in items), Counts())
    head = ("topic", "partition", "start", "end", *names)
    text = table(head, rows)
    return f"{text}\n" + "in all: " + ", ".join(f"{total.as_dict()[n]:,} {n}" for n in names)
