"""What a user decides of a failed verdict: it is accepted, or the batch that waits for it is given up."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

from sluice.errors import ConfigError
from sluice.ledger import Ledger, RunRow
from sluice.ledger.events import BatchGivenUp, NormalSet, VerdictAccepted
from sluice.run.circuit_breaker import FAILED, waiting
from sluice.run.verdict import faults, worse
from sluice.text import checked_reason

__all__ = ["MAY_BE_OUT", "accept", "check_unsettled", "give_up"]

MAY_BE_OUT = "if a run that died had published it before, the next run's verdict says so"
"""The hint for a batch that was given up after such a run (``ledger.verdicts.unfinished_since_judged``)."""


def accept(ledger: Ledger, pipeline: str, run_id: str, *, reason: str, new_normal: bool = False) -> str:
    """Accept what a run wrote although its verdict failed; return the verdict. Idempotent; no data changes.

    With ``new_normal``, also of a run that passed or warned: from now on the pipeline's history
    (``quality.history``) begins with this run, unless it is taken back later.

    If a batch of it waits, the next run publishes it, unless more is wrong with it by then: what was accepted is what
    this verdict found. Otherwise no lease is needed, because a run that is at work is not concerned.

    Raises
    ------
    ConfigError
        If the reason is empty or too long, the ledger does not have the run, its verdict did not fail, or a run that
        is not live is to be the new normal.
    LeaseHeldError
        If a batch waits and a run of the pipeline is at work, which may be deciding on it now.
    """
    unchanged = "nothing was changed"
    reason = checked_reason(reason)
    run = ledger.verdicts.as_judged(ledger.runs.known(pipeline, run_id))
    if new_normal and run.kind != "live":
        raise ConfigError(
            f"run {run_id!r} of {pipeline!r} is of the kind {run.kind}: quality.history compares live runs",
            state=unchanged,
            next_step="leave --new-normal out, or name a live run",
        )
    if new_normal and run.verdict in ("passed", "warned"):
        _begin(ledger, pipeline, run_id, reason)
        return run.verdict
    if run.verdict not in FAILED:
        had = "has no verdict yet" if run.verdict is None else f"has the verdict {run.verdict}"
        raise ConfigError(
            f"run {run_id!r} of {pipeline!r} {had}: only a failed verdict can be accepted",
            state=unchanged,
            next_step=f"choose a run with the verdict failed or error: sluice status {pipeline}",
        )
    verdict = _accept(ledger, pipeline, run, reason)
    if new_normal:
        _begin(ledger, pipeline, run_id, reason)
    return verdict


def _begin(ledger: Ledger, pipeline: str, run_id: str, reason: str) -> None:
    if ledger.profiles.normal_since(pipeline) != (run_id, reason):
        ledger.decide(pipeline, run_id, NormalSet(reason=reason))


def _accept(ledger: Ledger, pipeline: str, run: RunRow, reason: str) -> str:
    run_id, verdict = run.run, str(run.verdict)
    batch = waiting(ledger, pipeline, run)
    if batch is None:
        _refuse_given_up(ledger, pipeline, run)
        if ledger.verdicts.acceptance(pipeline, run_id) is None:
            ledger.decide(pipeline, run_id, VerdictAccepted(verdict=verdict, reason=reason))
        return verdict
    _refuse_outdated(ledger, pipeline, run, batch)
    if _is_decided(ledger, pipeline, batch, "VerdictAccepted"):
        return verdict
    with ledger.acquire(pipeline, _decision("accept")):
        batch, wrong = waiting(ledger, pipeline, run), faults(run.judgement or {})
        if batch is not None:  # else it was published meanwhile
            _refuse_outdated(ledger, pipeline, run, batch)
        ledger.decide(pipeline, run_id, VerdictAccepted(verdict=verdict, reason=reason, batch=batch, faults=wrong))
    return verdict


def _refuse_given_up(ledger: Ledger, pipeline: str, run: RunRow) -> None:
    """Refuse to accept a batch that a run has left out since, because a user gave it up."""
    waits = (run.judgement or {}).get("waits")
    settled = None if waits is None else ledger.verdicts.carried_out(pipeline, *waits)
    if waits is None or settled is None or settled.event != "BatchGivenUp":
        return
    raise ConfigError(
        f"batch {waits[1]} of run {run.run!r} was given up ({settled.reason}), and a run counted its offsets as lost",
        state="nothing was changed",
        next_step=f"to write it after all: sluice redrive {pipeline}",
    )


def _refuse_outdated(ledger: Ledger, pipeline: str, run: RunRow, batch: tuple[int, int]) -> None:
    """Refuse to accept what one run found wrong with a batch, if a later run found more."""
    newest = ledger.verdicts.newest_judged(pipeline)
    if newest is None or newest.run == run.run or waiting(ledger, pipeline, newest) != batch:
        return
    more = worse(faults(run.judgement or {}), faults(newest.judgement or {}))
    if not more:
        return
    raise ConfigError(
        f"batch {batch[1]} was judged again: run {newest.run!r} found more that is wrong with it than run {run.run!r}",
        state="nothing was changed; the batch waits",
        next_step=f"look at what was found then: sluice verdict {pipeline} {shlex.quote(newest.run)}; and accept that: "
        f"sluice accept {pipeline} {shlex.quote(newest.run)} --reason TEXT",
    )


def give_up(ledger: Ledger, pipeline: str, run_id: str, *, reason: str) -> tuple[int, int] | None:
    """Give up the batch of a run that waits; return its epoch and number, or None if there is none. Idempotent.

    The next run counts its offsets as lost, which are open then, so that they can be redriven. No data changes now.

    Raises
    ------
    ConfigError
        If the reason is empty or too long.
    UnknownRunError
        If the ledger does not have the run.
    LeaseHeldError
        If a run of the pipeline is at work: it may be about to publish the batch.
    """
    reason = checked_reason(reason)
    if waiting(ledger, pipeline, ledger.runs.known(pipeline, run_id)) is None:
        return None
    with ledger.acquire(pipeline, _decision("retract")):
        batch = waiting(ledger, pipeline, ledger.runs.known(pipeline, run_id))
        if batch is not None and not _is_decided(ledger, pipeline, batch, "BatchGivenUp"):
            ledger.decide(pipeline, run_id, BatchGivenUp(reason=reason, batch=batch))
        return batch


def check_unsettled(ledger: Ledger, pipeline: str, run_id: str) -> None:
    """Refuse to take back a whole run whose batch had waited, and waits no more: it was that batch that was meant.

    Raises
    ------
    ConfigError
        If the batch was given up or published since.
    """
    run = ledger.verdicts.as_judged(ledger.runs.known(pipeline, run_id))
    waits = (run.judgement or {}).get("waits") if run.verdict in FAILED else None
    if waits is None or waiting(ledger, pipeline, run) is not None:
        return
    for late in ledger.verdicts.too_late(pipeline):
        if late.batch == tuple(waits) and late.event == "BatchGivenUp":
            raise ConfigError(
                f"batch {waits[1]} of run {run_id!r} had been published by run {late.run!r} when it was given up",
                state="nothing was changed; the batch is in the sink",
                next_step=f"take it back: sluice retract {pipeline} {shlex.quote(late.run)} --reason TEXT",
            )
    settled = ledger.verdicts.carried_out(pipeline, *waits)
    what = "given up" if settled is not None and settled.event == "BatchGivenUp" else "published, or dropped by a reset"
    raise ConfigError(
        f"batch {waits[1]} of run {run_id!r}, which had waited, was {what}",
        state="nothing was changed; what the run published before that batch is in the sink",
        next_step=f"to take that back, name its offsets: sluice retract {pipeline} TOPIC:PARTITION:START-END --reason "
        "TEXT; to write again what was given up: sluice redrive " + pipeline,
    )


def _is_decided(ledger: Ledger, pipeline: str, batch: tuple[int, int], event: str) -> bool:
    """Return whether this was decided of a batch, and it was not judged since."""
    found = ledger.verdicts.decision(pipeline, *batch, standing=True)
    return found is not None and found.event == event


def _decision(what: str) -> str:
    return f"{what}__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
