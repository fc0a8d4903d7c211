"""The circuit breaker: no live run goes on behind a failed verdict, if the pipeline's file says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from sluice.errors import ConfigError, HeldError
from sluice.ledger import Ledger, RunRow
from sluice.pipeline import Pipeline
from sluice.run.retraction import retractable
from sluice.run.verdict import causes

__all__ = ["FAILED", "FRESHNESS", "accept", "faults", "give_up", "holder", "refuse_held", "settling", "waiting"]

FAILED = ("failed", "error")
"""The verdicts that hold a pipeline, and that can be accepted."""


FRESHNESS = "history.freshness"
"""What holds nothing: that the newest row is old."""


def holder(ledger: Ledger, pipeline: Pipeline) -> RunRow | None:
    """Return the run whose verdict holds the pipeline's live runs; None if they may go on.

    With ``quality.on_failed: hold`` that is the newest live run that was judged, if its verdict is ``failed`` or
    ``error``. It holds them until it is judged again with another verdict, somebody accepts it, everything that was
    judged was retracted, or a reset took all rows out, or dropped the batch that waits.
    """
    if pipeline.quality.on_failed != "hold":
        return None
    run = ledger.newest_judged(pipeline.name)
    if run is None or run.verdict not in FAILED or ledger.settlement(pipeline.name, run.run) is not None:
        return None
    waits = (run.judgement or {}).get("waits")
    wrong = faults(run.judgement or {})
    if wrong and all(fault.startswith(FRESHNESS) for fault in wrong):
        return None  # only a later run can bring new rows
    dropped = waits is not None and ledger.epoch(pipeline.name).number != waits[0]
    if dropped or run.epoch < ledger.base(pipeline.name):
        return None
    return None if _was_retracted(ledger, run) else run


def settling(pipeline: Pipeline, run: str) -> list[str]:
    """Return the commands that settle the verdict of a run whose rows are in the sink: those that are not refused."""
    names = ("accept", "retract") if retractable(pipeline) else ("accept",)
    return [f"sluice {name} {pipeline.name} {run} --reason TEXT" for name in names]


def refuse_held(ledger: Ledger, pipeline: Pipeline, run_id: str) -> None:
    """Refuse a live run of a pipeline that is held.

    Parameters
    ----------
    run_id
        The run to be started. Another attempt of the run that holds the pipeline may go on, unless that run was done.

    Raises
    ------
    HeldError
        With the run whose verdict holds it, and the ways on.
    """
    run = holder(ledger, pipeline)
    if run is None or (run.run == run_id and run.state != "done"):
        return
    name, reasons = pipeline.name, (run.judgement or {}).get("reasons") or []
    why = f": {'; '.join(causes(reasons)[:3])}" if reasons else ""
    waits = waiting(ledger, name, run)
    if waits is None:
        there, back = "what that run wrote is in the sink", "take its rows back"
        anew = f"sluice validate {name} {run.run}, or clear its task validate"
    else:
        there, back, anew = f"its batch {waits[1]} is not published", "give it up", f"sluice run {name} --run {run.run}"
    retract = f"{back}: sluice retract {name} {run.run} --reason TEXT"
    others = [other for other in (run.judgement or {}).get("runs") or [] if other != run.run]
    others = [other for other in others if _has_rows(ledger, name, [other])]
    if others:
        retract += f", and the same of what was judged with it: {', '.join(others)}"
    retract += "; or "
    retract = retract if waits is not None or retractable(pipeline) else ""
    raise HeldError(
        f"pipeline {name!r} is held: run {run.run!r} has the verdict {run.verdict}{why}",
        state=f"nothing was read or written now; {there}, and new records wait in the source, for as long as it "
        "retains them",
        next_step=f"look at it: sluice status {name}. Then accept it: sluice accept {name} {run.run} --reason TEXT; or "
        f"{retract}fix the suite or the limits, and have it judged again ({anew}). The next run then goes on",
    )


def waiting(ledger: Ledger, pipeline: str, run: RunRow) -> tuple[int, int] | None:
    """Return epoch and number of the batch that a run judged and did not publish, and that nobody published since."""
    run = ledger.as_judged(run)
    told = (run.judgement or {}).get("waits") if run.verdict in FAILED else None
    if told is None:
        return None
    epoch, number = told
    last = ledger.last_batch(pipeline, epoch)
    gone = ledger.epoch(pipeline).number != epoch or (last is not None and last.batch >= number)
    return None if gone else (epoch, number)


def give_up(ledger: Ledger, pipeline: str, run_id: str, *, reason: str) -> tuple[int, int] | None:
    """Give up the batch of a run that waits; return its epoch and number, or None if there is none. Idempotent.

    The next run counts its offsets as lost, which are open then, so that they can be redriven. No data changes now.

    Raises
    ------
    UnknownRunError
        If the ledger does not have the run.
    LeaseHeldError
        If a run of the pipeline is at work: it may be about to publish the batch.
    """
    if waiting(ledger, pipeline, ledger.known_run(pipeline, run_id)) is None:
        return None
    with ledger.acquire(pipeline, _decision("retract")):
        batch = waiting(ledger, pipeline, ledger.known_run(pipeline, run_id))
        settled = None if batch is None else ledger.settled_batch(pipeline, *batch)
        if batch is not None and (settled is None or settled[0] != "BatchGivenUp"):
            ledger.batch_given_up(pipeline, run_id, reason=reason, batch=batch)
        return batch


def faults(judgement: Mapping[str, Any]) -> dict[str, int | None]:
    """Return what made a verdict fail: each expectation and limit, with its number of unexpected values if it has one.

    Parameters
    ----------
    judgement
        A verdict's reasons, in the form that the ledger keeps.
    """
    found: dict[str, int | None] = {}
    if judgement.get("error") is not None:
        found["error"] = None
    for item in judgement.get("results") or []:
        if not item["success"]:
            name = f"{item['expectation']} on {item.get('column')} ({item.get('scope')})"
            count = item.get("unexpected_count")
            # several of one type may be on one column, with other bounds: all of them count
            found[name] = count if name not in found else (found[name] or 0) + (count or 0)
    figures = {_named(check): check["value"] for check in (judgement.get("history") or {}).get("checks") or []}
    for item in judgement.get("excesses") or []:
        if item["verdict"] == "failed":
            value = figures.get(item["limit"])
            # the baseline may be another one by now, and sums of numbers differ by their order
            found[f"{item['limit']}: {item['why'] if value is None else f'{value:.9g}'}"] = None
    return found


def _named(check: Mapping[str, Any]) -> str:
    """Return the limit by which a figure of a run's history is judged."""
    return f"history.{check['figure']}" + (f"({check['column']})" if check.get("column") else "")


def accept(ledger: Ledger, pipeline: str, run_id: str, *, reason: str, new_normal: bool = False) -> str:
    """Accept what a run wrote although its verdict failed; return the verdict. Idempotent; no data changes.

    With ``new_normal``, also of a run that passed or warned: from now on the pipeline's history
    (``quality.history``) begins with this run.

    If a batch of it waits, the next run publishes it, unless more is wrong with it by then: what was accepted is what
    this verdict found. Otherwise no lease is needed, because a run that is at work is not concerned.

    Raises
    ------
    ConfigError
        If the reason is empty, the ledger does not have the run, its verdict did not fail, or a run that is not live is
        to be the new normal.
    LeaseHeldError
        If a batch waits and a run of the pipeline is at work, which may be deciding on it now.
    """
    unchanged = "nothing was changed"
    if not reason.strip():
        raise ConfigError("the reason is empty", state=unchanged, next_step="say why, in a few words")
    run = ledger.as_judged(ledger.known_run(pipeline, run_id))
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
    if ledger.normal_since(pipeline) != (run_id, reason):
        ledger.normal_set(pipeline, run_id, reason=reason)


def _accept(ledger: Ledger, pipeline: str, run: RunRow, reason: str) -> str:
    run_id, verdict = run.run, str(run.verdict)
    if ledger.acceptance(pipeline, run_id) is not None:
        _refuse_outdated(ledger, pipeline, run)
        return verdict
    if waiting(ledger, pipeline, run) is None:
        ledger.verdict_accepted(pipeline, run_id, verdict=verdict, reason=reason)
        return verdict
    with ledger.acquire(pipeline, _decision("accept")):
        batch, wrong = waiting(ledger, pipeline, run), faults(run.judgement or {})
        ledger.verdict_accepted(pipeline, run_id, verdict=verdict, reason=reason, batch=batch, faults=wrong)
    return verdict


def _refuse_outdated(ledger: Ledger, pipeline: str, run: RunRow) -> None:
    """Refuse to accept once more a batch that a later run found worse than what was accepted."""
    batch, newest = waiting(ledger, pipeline, run), ledger.newest_judged(pipeline)
    if batch is None or newest is None or newest.run == run.run or waiting(ledger, pipeline, newest) != batch:
        return
    raise ConfigError(
        f"batch {batch[1]} of run {run.run!r} was accepted, and run {newest.run!r} found more that is wrong with it",
        state="nothing was changed; the batch waits",
        next_step=f"look at what was found then: sluice verdict {pipeline} {newest.run}; and accept that: "
        f"sluice accept {pipeline} {newest.run} --reason TEXT",
    )


def _decision(what: str) -> str:
    return f"{what}__{datetime.now(UTC).isoformat(timespec='milliseconds')}"


def _was_retracted(ledger: Ledger, run: RunRow) -> bool:
    # with it, runs may have been judged whose drivers had died: their rows may be those that failed
    runs = {run.run, *((run.judgement or {}).get("runs") or [])}
    return not _has_rows(ledger, run.pipeline, runs) and bool(
        runs & {item["run"] for item in ledger.retractions(run.pipeline)}
    )


def _has_rows(ledger: Ledger, pipeline: str, runs: Iterable[str]) -> bool:
    counts = [account.counts for name in runs for account in ledger.accounts(pipeline, name, standing=True)]
    return any(c.written + c.filtered for c in counts)
