"""Whether the state of a pipeline grows from run to run without being cleaned.

State that is cleaned comes and goes with the traffic, so its size alone says little. What nothing was removed from,
for longer than anything is to be kept, is not cleaned: event times stand still, or records of one window have ever
more keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from sluice.ledger import Ledger, StateRow
from sluice.pipeline import Pipeline
from sluice.text import length

__all__ = ["alarm", "warning"]


def warning(ledger: Ledger, pipeline: Pipeline) -> str | None:
    """Return in words what is wrong with the state of the present epoch; None if nothing is."""
    epoch = ledger.offsets.epoch(pipeline.name).number
    return alarm(pipeline, ledger.facts.states(pipeline.name, epoch=epoch))


def alarm(pipeline: Pipeline, states: Iterable[StateRow]) -> str | None:
    """Return in words what is wrong with the state; None if nothing is; pure.

    Parameters
    ----------
    states
        Those that the ledger has of the present epoch's runs, newest first. No more are taken than decide it.
    """
    earlier = iter(states)
    if pipeline.stateful is None or (newest := next(earlier, None)) is None:
        return None
    limits = pipeline.state
    size, look = newest.sums["live"], f"sluice state {pipeline.name} --history shows how it came to that"
    if limits.max_bytes is not None and size > limits.max_bytes:
        return (
            f"the state of {pipeline.name} has {size:,} bytes of keys and values, more than state.max_bytes "
            f"({limits.max_bytes:,}): {look}"
        )
    if not limits.growing_runs or pipeline.stateful.kept is None:
        return None
    kept = pipeline.stateful.kept
    grew = _growing(newest, earlier, limits.growing_runs, kept)
    if grew is None:
        return None
    before, runs = grew
    seconds = (_at(newest) - _at(before)).total_seconds()
    return (
        f"the state of {pipeline.name} grows and is not cleaned: from {before.sums['live']:,} to {size:,} bytes in "
        f"{runs:,} runs and {length(seconds)}, and nothing was removed, although it is to be kept for "
        f"{length(kept.total_seconds())} of event time: see whether the watermark moves, and how many keys a window "
        f"has: {look} "
        f"(state.growing_runs: {limits.growing_runs} sets this alarm)"
    )


def _growing(newest: StateRow, earlier: Iterable[StateRow], runs: int, kept: timedelta) -> tuple[StateRow, int] | None:
    """Return from which state it grew in so many runs and for so long, and in how many; None if it did not.

    Each of these runs left more than the one before and removed nothing. Runs that changed nothing are left out; if
    they went on for longer than state is to be kept, the growth has ended there.
    """
    after, since, count = newest, newest, 0
    for before in earlier:
        smaller = after.sums["live"] - before.sums["live"]
        if after.sums["removed"] or smaller < 0:
            return None
        if smaller:
            since, count = before, count + 1
        elif _at(since) - _at(before) > kept:
            return None
        after = before
        if count >= runs and _at(newest) - _at(before) >= kept:
            return before, count
    return None


def _at(state: StateRow) -> datetime:
    return datetime.fromisoformat(state.at)
