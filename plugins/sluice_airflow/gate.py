"""Measures a pipeline's backlog and decides whether a run is due."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from sluice.connections import Connection
from sluice.errors import ConfigError, Retry
from sluice.home import Home
from sluice.lag import Backlog, Limits
from sluice.lag.current import backlog
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.pipeline.mistakes import said
from sluice.pipeline.schedule import Lag
from sluice_airflow import metrics
from sluice_airflow.arguments import is_known, is_unset

__all__ = ["OnIdle", "check", "decide", "given", "limits_of", "look", "why_waiting"]


class OnIdle(StrEnum):
    """What a pipeline does when its backlog is not over its limit."""

    PROCEED = "proceed"
    """Run anyway: a run that finds nothing ends at once with the verdict ``empty``, and the ledger records it."""
    WAIT = "wait"
    """Wait until there is enough, or until the sensor's timeout."""
    SKIP = "skip"
    """Skip the run, and everything after it; nothing is recorded."""


def given(**limits: Any) -> dict[str, Any]:
    """Return the limits that are set by an argument or its template, as plain values.

    A template that renders to nothing, or to the text ``None``, sets no limit.
    """
    plain = {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in limits.items()}
    return {k: v for k, v in plain.items() if not is_unset(v)}


def limits_of(pipeline: Pipeline, instead: Mapping[str, Any] | None = None) -> Limits:
    """Return the limits of a pipeline's file, overridden by those of ``instead``.

    Raises
    ------
    ConfigError
        If a limit of ``instead`` is not valid.
    """
    return Limits.of(_checked(pipeline.lag.model_dump(exclude_unset=True) | dict(instead or {})))


def check(**limits: Any) -> None:
    """Check the limits of a task; what is a template, or is not set, is left out.

    Raises
    ------
    ConfigError
        If one of them is not valid.
    """
    _checked(given(**{name: value for name, value in limits.items() if is_known(value)}))


def _checked(limits: Mapping[str, Any]) -> Lag:
    own = dict(limits)
    if isinstance(seconds := own.get("max_age"), int | float) and not isinstance(seconds, bool):
        own["max_age"] = timedelta(seconds=seconds)  # as code writes it, and as given() stores it
    try:
        return Lag.model_validate(own)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {said(e)}" for e in error.errors())
        raise ConfigError(
            f"the limits of this task are not valid: {wrong}",
            state="nothing was read or written",
            next_step="fix max_records, max_age (15m, 2h), max_retention_share (0 to 1) or match (any, all)",
        ) from None


def look(
    pipeline: str,
    connection: Connection,
    *,
    limits: Mapping[str, Any] | None = None,
    timeout: float = 20.0,
    ledger: Ledger | None = None,
) -> Backlog:
    """Return the backlog of a pipeline (name or path), judged by its file's limits or by ``limits`` instead.

    Blocks for about ``timeout`` seconds at most; call it from a thread where that matters. A broker that is silent or
    refuses is an answer: see :class:`~sluice.lag.Backlog`. What it finds goes to Airflow's metrics as well.
    ``ledger`` is one that is open already.

    Raises
    ------
    SluiceError
        When the file, the checkpoint or the ledger cannot be read.
    """
    spec = load(pipeline)
    judged_by = limits_of(spec, limits)
    with spec.source.kind.cluster(connection, timeout=timeout) as cluster:
        found = backlog(spec, cluster, home=Home.from_env(), ledger=ledger or Ledger.open(), limits=judged_by)
    metrics.of_backlog(found)
    return found


def decide(found: Backlog, on_idle: OnIdle, *, hold_while_running: bool = True) -> OnIdle:
    """Return ``PROCEED`` when a run is worth starting, otherwise what ``on_idle`` says.

    ``WAIT`` while the lag is unknown (unknown is never zero), and while a run of the pipeline is active.

    Raises
    ------
    AuthorizationError, ConfigError
        If the lag cannot be measured and waiting would not help.
    """
    if found.error is not None and found.error.retry is Retry.NEVER:
        raise found.error
    if why_waiting(found, hold_while_running=hold_while_running):
        return OnIdle.WAIT
    return OnIdle.PROCEED if found.over or found.needs_a_run else on_idle


def why_waiting(found: Backlog, *, hold_while_running: bool = True) -> str | None:
    """Return, in words, what has to be waited for whatever the lag is; None if nothing."""
    if found.incomplete:
        return f"the lag is unknown: {found.error.what if found.error else 'the broker did not say'}"
    if hold_while_running and found.running is not None:
        return f"run {found.running!r} of {found.pipeline!r} is at work"
    return None
