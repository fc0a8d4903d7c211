"""Whether the state of a pipeline grows from run to run without being cleaned.

State that is cleaned comes and goes with the traffic, so its size alone says little. What nothing was removed from,
for longer than anything is to be kept, is not cleaned: event times stand still, or records of one window have ever
more keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sluice.ledger import Ledger, StateRow
from sluice.pipeline import Pipeline
from sluice.text import length

__all__ = ["alarm", "warning"]

_COMPARED = 2000
"""Maximum number of runs that are compared."""


def warning(ledger: Ledger, pipeline: Pipeline) -> str | None:
    """Return in words what is wrong with the state of the present epoch; None if nothing is."""
    epoch = ledger.epoch(pipeline.name).number
    return alarm(pipeline, ledger.states(pipeline.name, epoch=epoch, limit=_COMPARED))


def alarm(pipeline: Pipeline, states: Sequence[StateRow]) -> str | None:
    """Return in words what is wrong with the state; None if nothing is; pure.

    Parameters
    ----------
    states
        Those that the ledger has of the present epoch's newest runs, oldest first.
    """
    if pipeline.stateful is None or not states:
        return None
    limits, newest = pipeline.state, states[-1]
    size, look = newest.sums["live"], f"sluice state {pipeline.name} --history shows how it came to that"
    if limits.max_bytes is not None and size > limits.max_bytes:
        return (
            f"the state of {pipeline.name} has {size:,} bytes of keys and values, more than state.max_bytes "
            f"({limits.max_bytes:,}): {look}"
        )
    if not limits.growing_runs or pipeline.stateful.kept is None:
        return None
    grew = _growing(states)
    seconds, kept = (_at(newest) - _at(grew[0])).total_seconds(), pipeline.stateful.kept.total_seconds()
    if len(grew) - 1 < limits.growing_runs or seconds < kept:
        return None
    return (
        f"the state of {pipeline.name} grows and is not cleaned: from {grew[0].sums['live']:,} to {size:,} bytes in "
        f"{len(grew) - 1} runs and {length(seconds)}, and nothing was removed, although it is to be kept for "
        f"{length(kept)} of event time: see whether the watermark moves, and how many keys a window has: {look} "
        f"(state.growing_runs: {limits.growing_runs} sets this alarm)"
    )


def _growing(states: Sequence[StateRow]) -> list[StateRow]:
    """Return the newest runs of which each left more than the one before and removed nothing, and what was before them.

    A run that changed nothing is left out.
    """
    found = [states[-1]]
    for before, after in zip(reversed(states[:-1]), reversed(states), strict=False):
        smaller = after.sums["live"] - before.sums["live"]
        if after.sums["removed"] or smaller < 0:
            break
        if smaller:
            found.append(before)
        else:
            found[-1] = before
    return found[::-1]


def _at(state: StateRow) -> datetime:
    return datetime.fromisoformat(state.at)
