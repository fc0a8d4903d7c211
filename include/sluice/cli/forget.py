"""``sluice forget``: takes a pipeline without a file out of the lists."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sluice.cli.output import err, print_json
from sluice.errors import ConfigError
from sluice.ledger.events import PipelineForgotten

__all__ = ["forget"]


def forget(
    pipeline: Annotated[str, typer.Argument(metavar="NAME", help="The name of a pipeline whose file is gone.")],
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; recorded in the ledger. Without it nothing is changed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Take a pipeline whose file is gone out of the page and of sluice status.

    Without --reason: a dry run, which lists what stays. Nothing is deleted: its
    runs stay in the ledger, and its table, quarantine, log and checkpoints stay
    where they are. A later run under this name shows it again, and goes on where
    the last one ended.
    """
    from sluice.home import Home
    from sluice.ledger import Ledger
    from sluice.pipeline.load import named
    from sluice.text import checked_reason

    ledger, home = Ledger.open(), Home.from_env()
    newest = ledger.runs.newest(pipeline, limit=1)
    if not newest:
        raise ConfigError(
            f"the ledger has no pipeline {pipeline!r}",
            state="nothing was changed",
            next_step="sluice status lists the newest runs of all pipelines",
        )
    if files := named(pipeline):
        raise ConfigError(
            f"pipeline {pipeline!r} has a file: {', '.join(map(str, files))}",
            state="nothing was changed",
            next_step="remove the file first; then: sluice forget " + pipeline,
        )
    stays = [home.join(folder, pipeline) for folder in ("checkpoints", "logs", "sources", "quality", "quarantine")]
    stays = [folder for folder in stays if os.path.isdir(folder)]
    runs, before = ledger.runs.count(pipeline), pipeline in ledger.runs.forgotten([pipeline])
    if reason is not None and not before:
        with ledger.acquire(pipeline, newest[0].run) as lease:
            ledger.record(lease, PipelineForgotten(reason=checked_reason(reason)))
    if as_json:
        print_json({"pipeline": pipeline, "forgotten": before or reason is not None, "runs": runs, "stays": stays})
        return
    done = "is no longer listed" if reason is not None else "would no longer be listed (dry run)"
    if before:
        done = "was forgotten before: it is not listed"
    err.print(f"{pipeline} {done}. {runs:,} runs stay in the ledger: sluice status {pipeline}", markup=False)
    err.print("its table and its quarantine stay; delete them by hand if they are not needed", markup=False)
    for folder in stays:
        err.print(f"stays: {folder}", markup=False)
    if reason is None and not before:
        err.print(f"next: sluice forget {pipeline} --reason TEXT", markup=False)
