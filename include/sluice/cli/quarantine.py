"""``sluice quarantine``: shows what was refused, and why."""

from __future__ import annotations

from datetime import datetime

from sluice.cli.output import err, print_json, print_table
from sluice.delta.samples import look
from sluice.home import Home
from sluice.pipeline import load

__all__ = ["quarantine"]


def quarantine(
    pipeline: str, *, rule: str | None, run: str | None, since: datetime | None, show: int, as_json: bool
) -> None:
    """Print what the quarantine of a pipeline holds.

    Raises
    ------
    ConfigError
        If there is no valid pipeline file.
    SinkError
        If the table cannot be read.
    """
    spec = load(pipeline)
    found = look(Home.from_env().resolve(spec.quarantine_path), rule=rule, run=run, since=since, show=show)
    if as_json:
        print_json({"pipeline": spec.name, **found.as_dict()})
        return
    if found.groups:
        rows = [group.as_dict() for group in found.groups]
        print_table(rows, ["rule", "column", "records", "runs", "first", "last"])
    for sample in found.samples:
        where = f"\n{sample.topic}-{sample.partition} offset {sample.offset} ({sample.timestamp}), run {sample.run}"
        broke = f"{sample.rule}{f', column {sample.column}' if sample.column else ''}"
        print(f"{where}\n  broke {broke}; key {sample.key!r}\n  {sample.text!r}")
    asked = rule is not None or run is not None or since is not None
    if not found.records:
        err.print(f"nothing {'of that ' if asked else ''}is in quarantine: {found.path}", markup=False)
        return
    err.print(
        f"{found.records:,} records are in quarantine: {found.path}\nwhen decode, rules or transform take them: "
        f"sluice redrive {pipeline} --quarantined",
        markup=False,
    )
