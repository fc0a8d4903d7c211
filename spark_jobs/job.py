"""The application that spark-submit starts: it carries out one action. Exit codes: ``sluice.errors.ExitCode``.

Its arguments are a pipeline file and what :meth:`sluice.run.actions.Action.arguments` returns. The modules of an action
are imported for it alone, because the others would take longer than a run of a few records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sluice.home import Home
from sluice.kinds import imported, kind_of
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run import actions
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.session import run_main, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice_spark.runs.run import Run

Open = Callable[[], "SparkSession"]


def parse(argv: Sequence[str]) -> tuple[str, actions.Action]:
    """Return the pipeline file and the action of a command line.

    Raises
    ------
    ConfigError
        If it is of no action.
    """
    return (argv[0] if argv else ""), actions.parsed(argv[1:])


def run_of(file: str, action: actions.RunAction, open_session: Open) -> Run:
    """Return the run that carries out an action, not started yet.

    Raises
    ------
    ConfigError
        If the pipeline cannot do that.
    """
    from sluice_spark.quality.judge import Judge
    from sluice_spark.runs.context import RunContext

    pipeline, home = load(file), Home.from_env()
    judge = Judge(pipeline, home, action.run_id) if getattr(action, "validate", False) else None
    recovery = getattr(action, "recovery", None) or pipeline.recovery
    reason: str | None = getattr(action, "reason", None)
    context = RunContext(pipeline, action.run_id, Ledger.open(), home, open_session, recovery, judge, reason)
    match action:
        case actions.RunRequest():
            return _run(context, action)
        case actions.Redrive():
            from sluice_spark.runs.redrive import RedriveRun

            return RedriveRun(context, action)
        case actions.Retract():
            from sluice_spark.runs.retract import RetractRun

            return RetractRun(context, action)
        case actions.Reset():
            from sluice_spark.runs.reset import ResetRun

            how: dict[str, bool] = {
                "truncate": action.truncate, "agreed": action.agreed, "rebuild": action.rebuild,
            }  # fmt: skip
            return ResetRun(context, action.begin, **how)
        case actions.Failover():
            from sluice_spark.runs.failover import FailoverRun

            return FailoverRun(context, to=action.to)
    raise NotImplementedError(action.name)


def _run(context: Any, request: actions.RunRequest) -> Run:
    from sluice_spark.runs.interval import IntervalRun
    from sluice_spark.runs.live import LiveRun
    from sluice_spark.runs.window_interval import WindowIntervalRun

    pipeline = context.pipeline
    request.check(pipeline)
    if request.interval is None:
        return LiveRun(context, request.max_records_per_batch or pipeline.source.config.max_records_per_batch)
    kind = IntervalRun if pipeline.window is None else WindowIntervalRun
    return kind(context, request.interval)


def carry_out(file: str, action: actions.Action, open_session: Open) -> None:
    """Carry out an action. What it found goes into the file ``result`` of the action, if it has one.

    Raises
    ------
    SluiceError
        If it fails; with its exit code.
    """
    result: Path | None = getattr(action, "result", None)
    if isinstance(action, actions.Validate):
        from sluice_spark.runs.validate import validate

        validate(load(file), action.run_id, open_session)
    elif isinstance(action, actions.RunAction) and result is None:
        logger.info("account %s", json.dumps(run_of(file, action, open_session).execute()))
    else:
        found = _found(file, action, open_session)
        cast(Path, result).write_text(json.dumps(found), encoding="utf-8")


def _found(file: str, action: actions.Action, open_session: Open) -> Any:
    """Return what an action found that changes nothing, ready for JSON."""
    match action:
        case actions.Retract():
            return [part.as_dict() for part in cast(Any, run_of(file, action, open_session)).preview()]
        case actions.Reset() | actions.Failover():
            plan = cast(Any, run_of(file, action, open_session)).preview()
            return plan.as_dict() | ({"given_up": list(plan.given_up)} if isinstance(action, actions.Reset) else {})
        case actions.Preview():
            from sluice_spark.runs.preview import preview

            return preview(open_session(), load(file), Home.from_env(), action.records)
        case actions.TryQuarantined():
            from sluice_spark.runs.preview import still_refused

            asked: dict[str, Any] = {"of_run": action.of_run, "ranges": action.ranges or None}
            return still_refused(open_session(), load(file), Home.from_env(), **asked)
        case actions.Check():
            from sluice_spark.runs.checking import checked

            return checked([load(name) for name in action.files], open_session)
        case actions.ReadState():
            return _state(action, open_session())
        case actions.AuditWindows():
            from sluice_spark.runs.window_audit import audited

            return audited(load(file), action.plan, open_session)
    raise NotImplementedError(action.name)


def _state(action: actions.ReadState, spark: SparkSession) -> Any:
    from sluice_spark.windows.state import PaneSpans

    where, kept = (spark, action.checkpoint, action.batch), kind_of("operators", action.keeps)
    panes = [PaneSpans(*action.panes)] if action.panes else []  # which windows alone are made of
    if action.of is None:
        return imported(kept.held)(*where, *panes)
    return imported(kept.of_key)(*where, *action.of, *panes)


def main() -> None:
    set_up()
    carry_out(*parse(sys.argv[1:]), session)


if __name__ == "__main__":
    run_main(main)
