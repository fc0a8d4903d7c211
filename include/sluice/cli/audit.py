"""``sluice audit``: proves the account of a pipeline, and lists open lost ranges."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sluice.audit import AuditReport, audit, deep_audit
from sluice.audit.windows import Plan, Verdict, possible
from sluice.cli.names import name_of
from sluice.cli.output import COUNTS, err, print_json, print_table, say_empty
from sluice.cli.preview import looked
from sluice.errors import ConfigError, ExitCode, SluiceError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.run.actions import AuditWindows
from sluice.run.redrive_plan import final

__all__ = ["prove"]

_SHOWN = 50
_NOTHING = "nothing was read or changed"
_COUNTED = ("rows", "segments", "records", "windows")


def prove(pipeline: str, *, deep: bool, windows: bool, as_json: bool) -> int:
    """Audit a pipeline and print the result; return the exit code: 0 if it balances, else 1.

    Raises
    ------
    ConfigError
        If neither the ledger nor a pipeline file has the name, or a deep audit finds no valid file, or no windows.
    SinkError
        If a table cannot be read.
    """
    ledger = Ledger.open()
    if windows and not deep:
        both = f"sluice audit {pipeline} --deep --windows"
        raise ConfigError("--windows goes with --deep", state=_NOTHING, next_step=both)
    if deep:
        spec = load(pipeline)
        if windows:
            possible(spec)
        report = deep_audit(
            ledger,
            spec,
            Home.from_env(),
            lambda text: err.print(text, markup=False),
            (lambda plan: _recomputed(spec, plan)) if windows else None,
        )
    else:
        report = audit(ledger, name_of(ledger, pipeline))
    if as_json:
        print_json(report.as_dict())
    else:
        _show(report, pipeline)
        if not report.partitions:
            say_empty(pipeline, "committed batch" if ledger.runs.newest(report.pipeline, limit=1) else "run")
        err.print("balanced" if report.balanced else "NOT balanced")
    return int(ExitCode.DONE if report.balanced else ExitCode.OTHER)


def _recomputed(spec: Pipeline, plan: Plan) -> Verdict:
    """Compare windows with the table, by Spark.

    Raises
    ------
    ConfigError
        If a connection is not defined.
    typer.Exit
        If the application fails; with its exit code.
    """
    err.print("windows are recomputed from their records, by Spark", markup=False)
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        asked = Path(folder) / "plan.json"
        asked.write_text(json.dumps(plan.as_dict()), encoding="utf-8")
        return Verdict(**looked(spec, lambda result: AuditWindows(asked, result)))


def _show(report: AuditReport, argument: str) -> None:
    print_table(report.partitions, ["topic", "partition", "start", "end", *COUNTS, "redriven"])
    for row in report.lost[:_SHOWN]:
        print(_lost(row))
    if report.lost:
        count, more = sum(row["offsets"] for row in report.lost), len(report.lost) - _SHOWN
        print(f"{f'and {more:,} more ranges; ' if more > 0 else ''}{count:,} offsets are lost: {_way(argument)}")
    for name, found in (report.tables or {}).items():
        holds = ", ".join(f"{n:,} {what}" for what, n in found.items() if what in _COUNTED)
        err.print(f"compared with the {name} {found['path']}: {holds}", markup=False)
    for text in report.unproved:
        err.print(f"not proved: {text}", markup=False)
    for problem in report.problems[:_SHOWN]:
        err.print(f"problem: {problem}", markup=False)
    if len(report.problems) > _SHOWN:
        err.print(f"and {len(report.problems) - _SHOWN:,} more problems; --json has them", markup=False)


def _way(argument: str) -> str:
    """Return what can be done about lost offsets. Without a valid file of the pipeline that is what helps most."""
    with suppress(SluiceError):
        spec = load(argument)
        closes = f"sluice acknowledge {spec.called} --reason TEXT closes what no place has any more"
        return final(spec) or f"sluice redrive {spec.called} writes them; {closes}"
    return f"sluice redrive {shlex.quote(argument)}"


def _lost(row: Mapping[str, Any]) -> str:
    where = f"{row['topic']}-{row['partition']} [{row['start']}, {row['end']})"
    sample = row["sample"]
    here = sample and row["start"] <= sample["offset"] < row["end"]  # the range may be a part of what was lost together
    shown = f"; offset {sample['offset']} has key {sample['key']!r}, value {sample['value']!r}" if here else ""
    return f"lost: {where} by run {row['lost_by']}: {row['reason']}{shown}"
