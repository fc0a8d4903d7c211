"""``sluice profile``: what the rows that runs wrote look like, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.output import err, print_json, print_table, say_empty
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.facts.profile import ColumnProfile

__all__ = ["profile"]

_PRECISE = 6
"""Significant digits of a mean."""
_LONGEST = 20


def profile(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The id of a run; without it, the newest that wrote rows.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="C", help="Show this column of the newest runs, in place of one run.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many runs, with --column. Default: 20.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what the rows of a run look like: nulls, least and greatest values.

    Mean and the estimated number of distinct values are there for the columns
    in quality.profiled. Columns in structs are shown by their path; lists and
    maps are not profiled. Text has no least and greatest value here, and the
    columns in quality.masked have only nulls. Nothing is read but the ledger: a
    run is profiled when it writes, and runs of earlier versions were not.
    """
    from sluice.cli.names import name_of
    from sluice.facts.profile import NO_ROWS
    from sluice.ledger import Ledger

    if limit is not None and column is None:
        raise ConfigError("--limit goes with --column", state="nothing was read", next_step="give a column, too")
    ledger = Ledger.open()
    name = name_of(ledger, pipeline)
    runs = [ledger.runs.known(name, run).run] if run is not None else ledger.profiles.runs(name, limit=limit or 20)
    found = {key: profiles.get(key) for profiles in [ledger.profiles.by_run(name, runs)] for key in runs}
    if column is None and run is None:
        wrote = [key for key in runs if (found[key] or NO_ROWS).rows]
        runs = (wrote or runs)[:1]
    known = {key: there for key in runs if (there := found[key]) is not None}
    if column is not None and known and not any(column in there.columns for there in known.values()):
        names = ", ".join(sorted({name for there in known.values() for name in there.columns}))
        raise ConfigError(
            f"no profile of {name!r} has a column {column!r}",
            state="nothing was read but the ledger",
            next_step=f"choose one of: {names}" if names else "wait for a run that writes rows",
        )
    if as_json:
        told = [
            {
                "run": key,
                "rows": there.rows,
                "columns": {c: p.told() for c, p in there.columns.items() if _asked(c, column)},
            }
            for key, there in known.items()
        ]
        print_json({"pipeline": name, "runs": told})
        return
    if not known:
        if run is None:
            say_empty(name, "profile")
        else:
            err.print(f"run {run} of {name} has no profile: it committed no batch, or an earlier version", markup=False)
        return
    if column is not None:
        rows = [
            {"run": key, "rows": there.rows, **_line(there.columns[column])}
            for key, there in known.items()
            if column in there.columns
        ]
        print_table(rows, ["run", "rows", *_known(rows)])
        return
    for key, there in known.items():
        if there.columns:
            rows = [{"column": c, **_line(there.columns[c])} for c in there.columns]
            print_table(rows, ["column", *_known(rows)])
        err.print(f"run {key} of {name}: {there.rows:,} rows", markup=False)


def _asked(name: str, column: str | None) -> bool:
    return column is None or name == column


def _known(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the figures of which a table has any."""
    names = ("low", "high", "mean", "distinct")
    return ["nulls", "null %", *(name for name in names if any(row[name] is not None for row in rows))]


def _line(column: ColumnProfile) -> Mapping[str, Any]:
    share = column.null_share
    return {
        "nulls": column.nulls,
        "null %": None if share is None else f"{100 * share:.{2 if share in (0, 1) or share >= 0.0001 else 5}f}",
        "low": _short(column.low),
        "high": _short(column.high),
        "mean": _short(column.mean),
        "distinct": None if column.distinct is None else f"{'' if column.exact else '~'}{column.distinct:,}",
    }


def _short(value: Any) -> str | None:
    if isinstance(value, float):
        return f"{value:.{_PRECISE}g}"
    text = None if value is None else str(value)
    if text is not None and len(text) > _LONGEST and "T" in text:
        return text[:16].replace("T", " ") + ("Z" if text.endswith("Z") else "")  # to the minute
    return text
