"""The application that spark-submit starts: it carries out one action. Exit codes: ``sluice.errors.ExitCode``.

Its arguments are a pipeline file and what :meth:`sluice.run.actions.Action.arguments` returns. The modules of an action
are imported for it alone, because the others would take longer than a run of a few records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.home import Home
from sluice.kinds import imported
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
    run: Run = imported(action.by)(context, action)
    return run


def carry_out(file: str, action: actions.Action, open_session: Open) -> None:
    """Carry out an action. What it found goes into the file ``result`` of the action, if it has one.

    Raises
    ------
    SluiceError
        If it fails; with its exit code.
    """
    result: Path | None = getattr(action, "result", None)
    if not isinstance(action, actions.RunAction):
        found = imported(action.by)(load(file), action, open_session)
    elif result is not None:
        found = run_of(file, action, open_session).preview()
    else:
        logger.info("account %s", json.dumps(run_of(file, action, open_session).execute()))
    if result is not None:
        result.write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    set_up()
    carry_out(*parse(sys.argv[1:]), session)


if __name__ == "__main__":
    run_main(main)
