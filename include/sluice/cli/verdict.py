"""``sluice verdict``: what a run was judged by, and what is wrong with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.output import err, print_json, print_table

if TYPE_CHECKING:
    from sluice.ledger import Ledger, RunRow

__all__ = ["verdict"]

_ENOUGH = 1000
"""How many runs are searched for the newest verdict."""


def verdict(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The id of a run; without it, the newest that was judged.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the judgement as JSON.")] = False,
) -> None:
    """Show a run's verdict: each expectation, and what failed it.

    For each expectation that failed: its distinct values with counts, and the
    topic, partition and offset of the first rows. Values of the columns in
    quality.masked are not shown. What made the verdict fail comes before what
    only warns. If the newest attempt of a run ended before it was judged, its
    verdict is that of the attempt before. Nothing is judged again: for that, sluice validate. Exit code 0
    whatever the verdict.
    """
    from sluice.cli.names import name_of
    from sluice.ledger import Ledger

    ledger = Ledger.open()
    name = name_of(ledger, pipeline)
    row = _newest(ledger, name) if run is None else ledger.verdicts.as_judged(ledger.runs.known(name, run))
    judgement = (row.judgement if row else None) or {}
    accepted = ledger.verdicts.acceptance(name, row.run) if row else None
    if as_json:
        told = {"pipeline": name, "run": row.run if row else run, "verdict": row.verdict if row else None}
        print_json({**told, "accepted": accepted, **{k: v for k, v in judgement.items() if k not in told}})
        return
    if row is None or row.verdict is None:
        which = f"run {row.run} of {name} has no verdict" if row else f"no run of {name} has a verdict"
        way = f": sluice validate {name} {shlex.quote(row.run)} judges" if row and row.state == "done" else ""
        err.print(f"{which}{way or (f': it ended as {row.state}' if row else '')}", markup=False)
        return
    _show(name, row, judgement, accepted)


def _newest(ledger: Ledger, name: str) -> RunRow | None:
    runs = (ledger.verdicts.as_judged(run) for run in ledger.runs.newest(name, limit=_ENOUGH))
    return next((run for run in runs if run.verdict is not None), None)


def _show(name: str, row: RunRow, judgement: Mapping[str, Any], accepted: str | None) -> None:
    from sluice.run.verdict import line, title, told

    results = judgement.get("results") or []
    if results:
        rows = [line(result) for result in results]
        print_table(rows, list(rows[0]))
    suite = f" (suite {judgement['suite']}, {judgement.get('rows') or 0:,} rows)" if judgement.get("suite") else ""
    err.print(f"run {row.run} of {name}: verdict {row.verdict}{suite}", markup=False)
    if accepted is not None:
        err.print(f"the verdict was accepted: {accepted}", markup=False)
    if judgement.get("error"):
        err.print(f"judging failed: {judgement['error']}", markup=False)
    broken = [result for result in results if not result.get("success")]
    for head, failing in (("failed", True), ("warned", False)):
        for excess in judgement.get("excesses") or []:
            if (excess["verdict"] == "failed") is failing:
                err.print(f"{head}: {excess['limit']}: {excess['why']}", markup=False)
        for result in broken:
            if (result.get("severity") == "critical" or bool(result.get("exception"))) is failing:
                shown = [result["exception"]] if result.get("exception") else told(result)
                err.print("; ".join([f"{head}: {title(result)}", *shown]), markup=False)
    _show_history(judgement.get("history") or {})
    if judgement.get("data_docs"):
        err.print(f"Data Docs: {judgement['data_docs']}", markup=False)


def _show_history(history: Mapping[str, Any]) -> None:
    from sluice.run.baseline import Check

    fields = ("figure", "column", "value", "center", "low", "high", "runs")
    checks = [Check(**{name: item[name] for name in fields}) for item in history.get("checks") or []]
    if checks:
        print_table([check.line() for check in checks], list(checks[0].line()))
    for what, why in (history.get("unknown") or {}).items():
        err.print(f"not judged: {what}: {why}", markup=False)
