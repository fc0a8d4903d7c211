"""``sluice reset``: begins a pipeline in a new epoch, with a fresh checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sluice.cli.output import err, print_json, print_table

__all__ = ["reset"]


def reset(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; recorded in the ledger.")],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Where it begins: ISO 8601 for a time (UTC unless it has a zone). By default where it stopped.",
        ),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Take all rows of the pipeline out of the sink and the quarantine.")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild-state",
            help="Keep what windows or dedupe have in their state: the next run makes it again, from its records.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it also if something does not come back.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show what would be done.")] = False,
    run_id: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="The id of the run that resets, by default a new one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Begin a pipeline again: a new epoch, with a fresh checkpoint.

    The way out if the checkpoint is lost or does not fit (exit 41), if a window
    was changed, or if the topic was recreated (exit 22). The account goes on:
    offsets between the position and a later start are open as lost, and sluice
    redrive writes them. An earlier start would write offsets twice: it needs
    --truncate, which takes the pipeline's rows out of the sink in one commit.
    Open windows and remembered keys are dropped, unless --rebuild-state: then the
    next run reads their records again, from the source or the write-ahead log,
    by the window of the pipeline file, divided by its spark.sql.shuffle.partitions.
    (Not of sessions, processors, output: complete, or several clusters.)
    What does not come back is named, and needs --yes. No live run may be at
    work (exit 40). Idempotent. Exit codes: as sluice run.
    """
    from sluice.cli.run import carry_out, dry, ended
    from sluice.ledger import Ledger
    from sluice.pipeline import load
    from sluice.run.actions import Reset
    from sluice.run.reset_plan import possible
    from sluice.text import checked_reason

    checked_reason(reason)
    spec, ledger = load(pipeline), Ledger.open()
    possible(spec, begin, truncate=truncate, rebuild=rebuild)
    name = f"reset__{datetime.now(UTC).isoformat(timespec='milliseconds')}" if run_id is None else run_id
    action = Reset(name, reason, begin, truncate, agreed=yes, rebuild=rebuild)
    if dry_run:
        _show(dry(spec, action), as_json=as_json)
        return
    code = ended(spec, name, carry_out(spec, action), as_json=as_json)
    if code == 0 and not as_json and ledger.runs.account(spec.name, name)["reset"]["epoch"] is None:
        err.print("nothing was reset: the pipeline stands there already, and nothing was read since", markup=False)
    raise typer.Exit(code)


def _show(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    lost: dict[tuple[str, int], int] = {}
    for topic, partition, start, end in found["skipped"]:
        lost[topic, partition] = lost.get((topic, partition), 0) + end - start
    rows = [
        {
            "topic": topic,
            "partition": int(number),
            "begins at": offset,
            "open as lost": lost.get((topic, int(number)), 0),
        }
        for topic, parts in sorted(found["positions"].items())
        for number, offset in sorted(parts.items(), key=lambda item: int(item[0]))
    ]
    print_table(rows, ["topic", "partition", "begins at", "open as lost"])
    for note in found["given_up"]:
        err.print(f"this does not come back, and needs --yes: {note}", markup=False)
    for note in found["notes"][len(found["given_up"]) :]:
        err.print(f"note: {note}", markup=False)
    rows_leave = "all rows of the pipeline would leave the sink; " if found["truncated"] else ""
    err.print(f"{rows_leave}epoch {found['epoch']} would be opened; nothing was changed", markup=False)
