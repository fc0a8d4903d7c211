"""``sluice failover``: lets a pipeline go on with another cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from sluice.cli.output import err, print_json

__all__ = ["failover"]


def failover(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    to: Annotated[str, typer.Option("--to", metavar="CONNECTION", help="The cluster to go on with.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; recorded in the ledger.")] = "by hand",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show what would be done.")] = False,
    run_id: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="The id of the run that switches, by default a new one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Let a pipeline go on with another cluster, in a new epoch.

    The cluster is one of source.kafka.clusters, a mirror of the others. The
    next run reads what it retains, and leaves out copies of records that are
    in the table: each record is there once, by its origin. What the old
    cluster had, and no run read, is open as lost until the mirror brings it,
    or sluice redrive reads it from the old cluster. Back goes the same way.
    Nothing switches by itself. No live run may be at work (exit 40).
    Idempotent. Exit codes: as sluice run.
    """
    from sluice.cli.run import carry_out, dry, ended
    from sluice.ledger import Ledger
    from sluice.ledger.events import PipelineReset
    from sluice.ledger.resets import described
    from sluice.pipeline import load
    from sluice.run.actions import Failover
    from sluice.run.failover import possible
    from sluice.text import checked_reason

    checked_reason(reason)
    spec = load(pipeline)
    possible(spec, to)
    name = f"failover__{datetime.now(UTC).isoformat(timespec='milliseconds')}" if run_id is None else run_id
    action = Failover(name, to, reason)
    if dry_run:
        found = dry(spec, action)
        if as_json:
            print_json(found)
        else:
            err.print(f"{described(PipelineReset(**found))}; nothing was changed", markup=False)
        return
    code = ended(spec, name, carry_out(spec, action), as_json=as_json)
    if code == 0 and not as_json:
        done = Ledger.open().runs.account(spec.name, name)["failover"]
        if done["epoch"] is None:
            err.print(f"nothing was changed: the pipeline reads {to} already", markup=False)
        else:
            left = sum(end - start for *_, start, end in done["open"])
            err.print(
                f"epoch {done['epoch']} reads {to}; {left:,} offsets of {done['from']} are open as lost", markup=False
            )
    raise typer.Exit(code)
