"""``sluice compact`` and ``sluice vacuum``: look after a pipeline's Delta tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sluice import upkeep
from sluice.cli.output import err, print_json
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load

__all__ = ["compact", "vacuum"]

_NONE = "{} has no Delta table yet: there is nothing to do"


def compact(pipeline: str, *, dry_run: bool, as_json: bool) -> None:
    """Merge small files, or count them."""
    spec = load(pipeline)
    found = upkeep.compact(spec, Home.from_env(), dry_run=dry_run)
    if as_json:
        print_json({"pipeline": spec.name, "dry_run": dry_run, "tables": found})
        return
    if not found:
        err.print(_NONE.format(spec.name), markup=False)
    for row in found:
        said = "{small:,} of {files:,} files are small" if dry_run else "{merged:,} files were merged into {into:,}"
        _say(row, said)


def vacuum(pipeline: str, *, older_than: timedelta | None, dry_run: bool, as_json: bool) -> None:
    """Remove files that no recent version uses, or count them."""
    spec = load(pipeline)
    found = upkeep.vacuum(Ledger.open(), spec, Home.from_env(), older_than, dry_run=dry_run)
    if as_json:
        print_json({"pipeline": spec.name, "dry_run": dry_run, "tables": found})
        return
    if not found:
        err.print(_NONE.format(spec.name), markup=False)
    for row in found:
        _say(row, "{files:,} files would be removed" if dry_run else "{files:,} files were removed")


def _say(row: dict[str, Any], said: str) -> None:
    err.print(f"{row['table']} {row['path']}: {said.format(**row)}", markup=False)
