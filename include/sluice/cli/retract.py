"""``sluice retract``: takes rows out of the sink, and opens their offsets as lost."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sluice.cli.output import err, print_json, print_table

__all__ = ["retract"]

_STAYS = "; what the run published before it stays in the sink"


def retract(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    what: Annotated[
        list[str],
        typer.Argument(metavar="RUN|RANGE...", help="A run's id, or ranges TOPIC:PARTITION:START-END (end exclusive)."),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; recorded in the ledger.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show what would be retracted.")] = False,
    run_id: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="The id of the run that retracts, by default a new one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Take the rows that a run wrote, or those of some offsets, out of the sink.

    They leave the table in one commit. Their offsets are counted as lost and
    are open, so sluice redrive writes them again, exactly once, for example
    after a fix of the transform; sluice acknowledge closes them for good. What
    the run quarantined stays in the quarantine. Live runs go on afterwards as
    if nothing had happened. Idempotent. Exit codes: as sluice run.

    If a batch of the run was judged before its commit, and waits, only that
    batch is given up: the next run counts its offsets as lost. What the run
    published before stays; name its ranges to take that back, too.
    """
    from sluice.cli.run import carry_out, dry, ended
    from sluice.ledger import Ledger
    from sluice.pipeline import load
    from sluice.run.actions import Retract
    from sluice.run.circuit_breaker import holder, waiting
    from sluice.run.decision import MAY_BE_OUT, check_unsettled, give_up
    from sluice.run.redrive_plan import check_ranges, final
    from sluice.run.retraction import possible, standing, wanted
    from sluice.text import checked_reason

    checked_reason(reason)
    spec, ledger = load(pipeline), Ledger.open()
    of_run, ranges = wanted(what, spec.source.config)
    if of_run is not None and dry_run and (waits := waiting(ledger, spec.name, ledger.runs.known(spec.name, of_run))):
        err.print(f"batch {waits[1]} of run {of_run}, which waits, would be given up{_STAYS}", markup=False)
        if (why := final(spec)) is not None:
            err.print(f"for good: {why}", markup=False)
        if as_json:
            print_json([])
        return
    if of_run is not None and not dry_run and (batch := give_up(ledger, spec.name, of_run, reason=reason)):
        out = f"; {MAY_BE_OUT}" if ledger.verdicts.unfinished_since_judged(spec.name, of_run) else ""
        err.print(
            f"batch {batch[1]} of run {of_run}, which waits, is given up: the next run counts its offsets as lost, and "
            f"opens them{_STAYS}{out}",
            markup=False,
        )
        if (why := final(spec)) is not None:
            err.print(f"that is for good, unless sluice accept follows before that run: {why}", markup=False)
        if as_json:
            print_json({"pipeline": spec.name, "run": of_run, "given_up": list(batch), "reason": reason})
        return
    possible(spec)
    if of_run is not None:
        check_unsettled(ledger, spec.name, of_run)
    check_ranges(ledger, spec.name, ranges)
    chosen = standing(ledger, spec.name, run_id=of_run, ranges=ranges)
    name = f"retract__{datetime.now(UTC).isoformat(timespec='milliseconds')}" if run_id is None else run_id
    action = Retract(name, reason, of_run, tuple(ranges))
    if dry_run:
        _show(dry(spec, action), as_json=as_json)
        return
    if not chosen and ledger.runs.running(spec.name) is None:
        # the run is started nevertheless: the ledger may be behind the table
        err.print("the ledger has nothing more to retract there: it was retracted before, or never written")
    code = ended(spec, name, carry_out(spec, action), as_json=as_json)
    if code == 0 and not as_json:
        back = ledger.runs.account(spec.name, name)["retracted"]
        if back["opened"]:
            err.print(
                f"{back['written']:,} offsets left the sink; {back['opened']:,} are open as lost: "
                f"sluice redrive {spec.called} writes them again",
                markup=False,
            )
        else:
            err.print("nothing was retracted: the sink and the ledger are as they were")
            if (held := holder(ledger, spec)) is not None and held.run == of_run:
                err.print(
                    f"the pipeline is still held by the verdict of that run: sluice accept {pipeline} "
                    f"{shlex.quote(of_run)} --reason TEXT",
                    markup=False,
                )
    raise typer.Exit(code)


def _show(parts: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    rows = [
        {
            "topic": part["topic"], "partition": part["partition"], "start": part["ranges"][0][0],
            "end": part["ranges"][-1][1], "offsets": sum(b - a for a, b in part["ranges"]),
            "written": part["written"], "run": part["run"],
        }
        for part in parts
    ]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    if rows:
        print_table(rows, ["topic", "partition", "start", "end", "offsets", "written", "run"])
    written, opened = sum(r["written"] for r in rows), sum(r["offsets"] for r in rows)
    err.print(
        f"{written:,} offsets would leave the sink, and {opened:,} would be open as lost; nothing was changed"
        if rows else "there is nothing to retract"
    )  # fmt: skip
