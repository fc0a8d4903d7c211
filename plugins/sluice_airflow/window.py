"""Decides what a DAG run reads: what is available now, or an interval of record time."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline
from sluice.pipeline.suite import nearest
from sluice.recovery import Recovery
from sluice.run.actions import RunRequest
from sluice.run.interval import Interval
from sluice.text import run_of_interval
from sluice_airflow.arguments import count_of

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["Mode", "RunWindow", "refuse_unknown", "run_window"]

_BACKFILL = "backfill"
_UNTOUCHED = "nothing was read or written"


class Mode(StrEnum):
    """What a run is asked to do: the DAG's param ``mode``."""

    AUTO = "auto"
    """By the type of the run: a backfill means its interval, every other run what is available now."""
    AVAILABLE_NOW = "available_now"
    """What Kafka holds now, whatever the run's dates are."""
    INTERVAL = "interval"
    """The interval between the params ``start`` and ``end``; of a backfill, its own."""


@dataclass(frozen=True)
class RunWindow:
    """A run's id in the ledger, the interval that it means (None: what is available now), and what was asked for."""

    run_id: str
    interval: Interval | None
    reason: str | None
    recovery: Recovery | None
    """The strategy of an interval."""


def run_window(context: Context, pipeline: Pipeline, run_id: str | None = None) -> RunWindow:
    """Return what a task's DAG run means.

    A scheduled, manual or asset-triggered run means what is available now, whatever its logical date is, and also
    without one. Only a backfill run means its data interval: a manual run has a data interval, too, but its user never
    chose it. A cleared run means the same again.

    Parameters
    ----------
    context
        The task's context. The keys of a null logical date are absent; the DAG need not have the params.
    run_id
        The run's id, if not Airflow's.

    Returns
    -------
    RunWindow
        An interval's run has an id of its own, ``…__interval``: Airflow reprocesses under the id of the run that it
        reprocesses, which may have been a live one.

    Raises
    ------
    ConfigError
        When ``mode``, ``start`` and ``end`` contradict each other or the run, or the interval is not valid; when an
        interval was given a strategy or a limit that it cannot have; and if the run was given a param that a DAG of a
        pipeline file does not have.
    """
    refuse_unknown(context, {"mode", "recovery", "validate"})
    params = dict(context.get("params") or {})
    name = run_id or str(context["run_id"])
    mode = _mode(params.get("mode"))
    start, end = _text(params.get("start")), _text(params.get("end"))
    backfill = _kind(context) == _BACKFILL
    if backfill and mode is not Mode.AVAILABLE_NOW:
        if start or end:
            raise ConfigError(
                "each run of a backfill reads its own interval, but start and end were given as well",
                state=_UNTOUCHED,
                next_step="leave them out of --dag-run-conf; for one interval of your own trigger a run with mode "
                "interval",
            )
        first, last = context.get("data_interval_start"), context.get("data_interval_end")
        if first is None or last is None:
            raise ConfigError(
                "this backfill run has no data interval",
                state=_UNTOUCHED,
                next_step="give the DAG a schedule with intervals: CronDataIntervalTimetable",
            )
        start, end = first.isoformat(), last.isoformat()
    elif mode is Mode.AVAILABLE_NOW and (start or end):
        raise ConfigError(
            "start and end are for an interval, and mode is available_now",
            state=_UNTOUCHED,
            next_step="choose mode interval, or leave them empty",
        )
    elif mode is Mode.INTERVAL and not (start and end):
        raise ConfigError(
            "mode interval needs start and end",
            state=_UNTOUCHED,
            next_step="give both, or choose mode available_now",
        )
    # the DAG's params have defaults, which are the file's: only a choice that differs was asked for
    asked = params.get("recovery")
    limit = count_of("max_records_per_batch", params.get("max_records_per_batch"))
    request = RunRequest.of(
        pipeline,
        name,
        recovery=asked if asked != pipeline.recovery else None,
        max_records_per_batch=limit if limit != pipeline.source.config.max_records_per_batch else None,
        start=start,
        end=end,
        reason=_text(params.get("reason")),
    )
    if request.interval is None:
        return RunWindow(name, None, request.reason, None)
    return RunWindow(run_of_interval(name), request.interval, request.reason, request.recovery)


def refuse_unknown(context: Context, ours: Set[str]) -> None:
    """Refuse unknown params: Airflow accepts any key, and with a misspelt one a run does something else than asked.

    Parameters
    ----------
    ours
        Params by which a DAG of Sluice's is known: others may have params of their own.

    Raises
    ------
    ConfigError
        With the nearest param.
    """
    known = list(getattr(context.get("dag"), "params", None) or {})
    if not ours <= set(known):
        return
    given = getattr(context.get("dag_run"), "conf", None) or {}
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        hints = "; ".join(nearest(key, known, "the params are") for key in unknown)
        raise ConfigError(
            f"this run was given {', '.join(map(repr, unknown))}, and the DAG has no such param: {hints}",
            state=_UNTOUCHED,
            next_step=f"trigger another run; the params are {', '.join(known)}",
        )


def _mode(asked: Any) -> Mode:
    try:
        return Mode(asked or Mode.AUTO)
    except ValueError:
        raise ConfigError(
            f"mode {asked!r} is not one of {', '.join(Mode)}", state=_UNTOUCHED, next_step="choose one of them"
        ) from None


def _kind(context: Context) -> str:
    found = getattr(context.get("dag_run"), "run_type", None)
    return str(getattr(found, "value", found) or "")


def _text(value: Any) -> str | None:
    return str(value).strip() or None if value is not None else None
