"""``sluice validate``: judges the rows of a run again, such as after a fix of the suite."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from sluice.cli.output import err
from sluice.errors import ConfigError, ExitCode

__all__ = ["validate"]


def validate(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Validate the rows of a run again, with the suite and the limits of now.

    The new verdict takes the place of the old one, and live runs that the old
    one held (quality.on_failed: hold) go on if it is better. Great Expectations
    runs in Spark; no data changes. Clearing the Airflow task validate does the
    same. Idempotent. Exit codes: as sluice run.
    """
    from sluice.cli.run import carry_out, ended
    from sluice.launch.launcher import Interrupted
    from sluice.ledger import Ledger
    from sluice.pipeline import load
    from sluice.run.actions import Validate
    from sluice.run.circuit_breaker import waiting

    spec, ledger = load(pipeline), Ledger.open()
    row = ledger.runs.ended(spec.name, run)
    if row.state != "done" and row.verdict is None and not ledger.offsets.accounts(spec.name, run):
        raise ConfigError(
            f"run {run!r} of {spec.name!r} ended as {row.state}, and committed nothing",
            state="there is nothing to judge: records that it did not read still wait",
            next_step=f"sluice run {spec.called}",
        )
    batch = waiting(ledger, spec.name, row)
    if batch is not None:
        raise ConfigError(
            f"batch {batch[1]} of run {run!r} is not published: it is judged when it is read again",
            state="nothing was read or written",
            next_step=f"sluice run {spec.called} --run {shlex.quote(run)}",
        )
    try:
        code = carry_out(spec, Validate(run))
    except Interrupted as end:
        err.print(f"sluice: interrupted by {end.signal.name}: the verdict of run {run} is as it was", markup=False)
        raise
    code = ended(spec, run, code, as_json=as_json)
    raise typer.Exit(0 if code == ExitCode.QUALITY_FAILED and spec.quality.on_failed == "warn" else code)
