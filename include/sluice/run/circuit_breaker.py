"""The circuit breaker: no live run goes on behind a failed verdict, if the pipeline's file says so."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.errors import HeldError
from sluice.ledger import Ledger, RunRow
from sluice.pipeline import Pipeline
from sluice.run.retraction import retractable
from sluice.run.verdict import causes, faults

__all__ = [
    "FAILED",
    "FRESHNESS",
    "holder",
    "only_late",
    "refuse_held",
    "settling",
    "surely_held",
    "unsettled",
    "waiting",
]

FAILED = ("failed", "error")
"""The verdicts that hold a pipeline, and that can be accepted."""


FRESHNESS = "history.freshness"
"""What holds nothing: that the newest row is old."""


def holder(ledger: Ledger, pipeline: Pipeline) -> RunRow | None:
    """Return the run whose verdict holds the pipeline's live runs; None if they may go on.

    With ``quality.on_failed: hold`` that is the run of :func:`unsettled`.
    """
    return unsettled(ledger, pipeline.name) if pipeline.quality.on_failed == "hold" else None


def unsettled(ledger: Ledger, pipeline: str) -> RunRow | None:
    """Return the newest live run that was judged, if its verdict is ``failed`` or ``error`` and stands; else None.

    It stands until it is judged again with another verdict, a user accepts it or decides on the batch that waits,
    everything that was judged was retracted, or a reset took all rows out, or dropped the batch that waits. A run that
    found nothing was not judged.
    """
    run = ledger.verdicts.newest_judged(pipeline)
    if run is None or run.verdict not in FAILED or ledger.verdicts.settlement(pipeline, run.run) is not None:
        return None
    waits = (run.judgement or {}).get("waits")
    if waits is not None and ledger.verdicts.decision(pipeline, *waits, standing=True) is not None:
        return None  # whichever run's it was called by
    if only_late(run.judgement or {}):
        return None  # only a later run can bring new rows
    dropped = waits is not None and ledger.offsets.epoch(pipeline).number != waits[0]
    if dropped or run.epoch < ledger.offsets.resets(pipeline).base:
        return None
    return None if _was_retracted(ledger, run) else run


def surely_held(ledger: Ledger, pipeline: Pipeline) -> RunRow | None:
    """Return :func:`holder`, unless a run began since that verdict and did not end well.

    It may have taken back what holds the pipeline: only a driver finds out what is committed.
    """
    run = holder(ledger, pipeline)
    return None if run is None or ledger.verdicts.unfinished_since_judged(pipeline.name, run.run) else run


def only_late(judgement: Mapping[str, Any]) -> bool:
    """Return whether nothing but the age of the newest row made a verdict fail."""
    wrong = faults(judgement)
    return bool(wrong) and all(fault.startswith(FRESHNESS) for fault in wrong)


def settling(pipeline: Pipeline, run: str) -> list[str]:
    """Return the commands that settle the verdict of a run whose rows are in the sink: those that are not refused."""
    names = ("accept", "retract") if retractable(pipeline) else ("accept",)
    return [f"sluice {name} {pipeline.called} {shlex.quote(run)} --reason TEXT" for name in names]


def refuse_held(ledger: Ledger, pipeline: Pipeline, run_id: str, *, driver: bool = False) -> None:
    """Refuse a live run of a pipeline that is held.

    Parameters
    ----------
    run_id
        The run to be started. Another attempt of the run that holds the pipeline may go on, unless that run was done.
    driver
        Whether this is its driver. Before one is started, only what is :func:`surely_held` is refused.

    Raises
    ------
    HeldError
        With the run whose verdict holds it, and the ways on.
    """
    run = holder(ledger, pipeline) if driver else surely_held(ledger, pipeline)
    if run is None or (run.run == run_id and run.state != "done"):
        return
    name, reasons = pipeline.name, (run.judgement or {}).get("reasons") or []
    called, named = pipeline.called, shlex.quote(run.run)
    why = f": {'; '.join(causes(reasons)[:3])}" if reasons else ""
    waits = waiting(ledger, name, run)
    if waits is None:
        there, back = "what that run wrote is in the sink", "take its rows back"
        again = f"sluice validate {called} {named}, or clear its task validate"
    else:
        there, back = f"its batch {waits[1]} is not published", "give it up"
        again = f"sluice run {called} --run {named}"
    retract = f"{back}: sluice retract {called} {named} --reason TEXT"
    others = [other for other in (run.judgement or {}).get("runs") or [] if other != run.run]
    others = [other for other in others if _has_rows(ledger, name, [other])]
    if others:
        retract += f", and the same of what was judged with it: {', '.join(map(shlex.quote, others))}"
    retract += "; or "
    retract = retract if waits is not None or retractable(pipeline) else ""
    raise HeldError(
        f"pipeline {name!r} is held: run {run.run!r} has the verdict {run.verdict}{why}",
        state=f"nothing was read or written now; {there}, and new records wait in the source, for as long as it "
        "retains them",
        next_step=f"look at it: sluice status {name}. Then accept it: sluice accept {called} {named} --reason TEXT; "
        f"or {retract}fix the suite or the limits, and have it judged again ({again}). The next run then goes on",
    )


def waiting(ledger: Ledger, pipeline: str, run: RunRow) -> tuple[int, int] | None:
    """Return epoch and number of the batch that a run judged and did not publish, and that was not published since."""
    run = ledger.verdicts.as_judged(run)
    told = (run.judgement or {}).get("waits") if run.verdict in FAILED else None
    if told is None:
        return None
    epoch, number = told
    last = ledger.offsets.last_batch(pipeline, epoch)
    gone = ledger.offsets.epoch(pipeline).number != epoch or (last is not None and last.batch >= number)
    return None if gone else (epoch, number)


def _was_retracted(ledger: Ledger, run: RunRow) -> bool:
    # with it, runs may have been judged whose drivers had died: their rows may be those that failed
    runs = {run.run, *((run.judgement or {}).get("runs") or [])}
    retracted = runs & {item["run"] for item in ledger.offsets.retractions(run.pipeline)}
    return bool(retracted) and not ledger.verdicts.judged_rows_stand(run.pipeline, run.run, runs)


def _has_rows(ledger: Ledger, pipeline: str, runs: Iterable[str]) -> bool:
    counts = [account.counts for name in runs for account in ledger.offsets.accounts(pipeline, name, standing=True)]
    return any(c.written + c.filtered for c in counts)
