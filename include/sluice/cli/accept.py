"""``sluice accept``: says, with a reason, that rows whose verdict failed may stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.output import err, print_json
from sluice.errors import SluiceError

if TYPE_CHECKING:
    from sluice.ledger import Ledger

__all__ = ["accept", "held"]


def accept(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run whose verdict is failed or error.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why its rows may stay; recorded in the ledger.")],
    new_normal: Annotated[
        bool, typer.Option("--new-normal", help="What quality.history compares with begins with this run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a line.")] = False,
) -> None:
    """Accept what a run wrote although its verdict failed.

    The verdict stays as it is, with the reason beside it. Live runs that it
    holds (quality.on_failed: hold) go on, and its Airflow task validate
    succeeds when it is cleared. No data changes now. A batch that waits
    (quality.when: before_commit) is published by the next run, unless more is
    wrong with it by then; a run at work has to end first (exit 40). To take the
    rows out of the table instead: sluice retract.

    An accepted run is one more of those with which quality.history compares. If
    its figures are what is to be expected from now on, add --new-normal, also
    for a run that only warned: runs before it are not compared with any more.
    Idempotent. Exit codes: as
    sluice run.
    """
    from sluice.cli.names import name_of
    from sluice.ledger import Ledger
    from sluice.run.circuit_breaker import waiting
    from sluice.run.decision import accept as settle

    ledger = Ledger.open()
    name = name_of(ledger, pipeline)
    verdict = settle(ledger, name, run, reason=reason, new_normal=new_normal)
    told = ledger.verdicts.acceptance(name, run) or reason
    if as_json:
        normal = {"new_normal": True} if new_normal else {}
        print_json({"pipeline": name, "run": run, "verdict": verdict, "accepted": told, **normal})
        return
    err.print(f"run {run} of {name}: the verdict {verdict} is accepted ({told})", markup=False)
    if (batch := waiting(ledger, name, ledger.runs.known(name, run))) is not None:
        out = " or a run that died had left it out" if ledger.verdicts.unfinished_since_judged(name, run) else ""
        err.print(
            f"the next run publishes its batch {batch[1]}, unless more is wrong with it by then{out}", markup=False
        )
    if new_normal:
        err.print("what quality.history compares with begins with this run", markup=False)


def held(ledger: Ledger, pipelines: Iterable[str]) -> list[str]:
    """Return a line for each of some pipelines whose live runs wait for a user to settle a failed verdict.

    Parameters
    ----------
    pipelines
        Their names or files.
    """
    from sluice.pipeline import load
    from sluice.run.circuit_breaker import holder, waiting
    from sluice.run.retraction import retractable

    lines = []
    for text in sorted(pipelines):
        try:
            pipeline = load(text)
            run = holder(ledger, pipeline)
        except SluiceError:  # its file is gone or broken: it does not run anyway
            continue
        if run is not None:
            name = pipeline.name
            lines.append(
                f"{name} is held: live runs wait until the verdict {run.verdict} of run {run.run} is settled by "
                f"sluice accept{' or sluice retract' if waiting(ledger, name, run) or retractable(pipeline) else ''}"
            )
    return lines
