"""``sluice run``: starts spark-submit, waits for it, prints the account."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from sluice.cli.output import (
    COUNTS,
    err,
    of_tables,
    print_json,
    print_table,
)
from sluice.connections import Connection, find, look_up
from sluice.errors import ConfigError, ExitCode, QualityError, SluiceError
from sluice.facts import lines
from sluice.home import Home
from sluice.lag.current import waiting
from sluice.launch.launcher import Interrupted, LocalProcess
from sluice.launch.submit import submit
from sluice.ledger import Ledger
from sluice.ledger.events import RunClosed
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery, Route
from sluice.run.actions import Action, PlannedAction, RunAction, RunRequest
from sluice.run.circuit_breaker import FAILED, refuse_held, settling
from sluice.run.redrive_plan import way_out
from sluice.run.verdict import headed

__all__ = ["carry_out", "closing", "drive", "dry", "ended", "spark_of"]

_SPARK = "spark_default"


def drive(
    pipeline: str,
    run_id: str,
    *,
    recovery: Recovery | None,
    max_records_per_batch: int | None,
    start: str | None,
    end: str | None,
    reason: str | None,
    validate: bool,
    as_json: bool,
) -> int:
    """Run a pipeline to its end; return the exit code.

    The application's log goes to stderr. A failing verdict raises :class:`QualityError`. With ``as_json`` stdout ends
    with the run's account on one line, also if the run failed after it was planned.

    Parameters
    ----------
    start, end
        An interval of record time, in ISO 8601; None means what is available now.
    """
    spec = load(pipeline)
    if empty := [name for name, given in (("--start", start), ("--end", end)) if given is not None and not given]:
        raise ConfigError(
            f"{empty[0]} is empty",
            state="nothing was read or written",
            next_step="give start and end of an interval; leave both options out for what is available now",
        )
    request = RunRequest.of(
        spec,
        run_id,
        recovery=recovery,
        max_records_per_batch=max_records_per_batch,
        start=start,
        end=end,
        reason=reason,
        validate=validate,
    )
    if request.interval is None and (recovery or spec.recovery).route is not Route.LOG:
        refuse_held(Ledger.open(), spec, run_id)  # with the log, the driver lands records first
    launcher, ledger = LocalProcess(spark_of(spec), find), Ledger.open()
    epoch, engine = ledger.offsets.epoch(spec.name), ledger.runs.engine(spec.name)
    waits = None if request.interval else waiting(spec, find, home=Home.from_env(), epoch=epoch)
    with closing(spec, run_id):
        code = launcher.launch(spec, request, waiting=waits, engine=engine)
    return ended(spec, run_id, code, as_json=as_json)


@contextlib.contextmanager
def closing(spec: Pipeline, run_id: str) -> Iterator[None]:
    """Close a run whose driver Ctrl-C or SIGTERM ended, and say so in one line; its process has ended by then.

    The next run finds out what it committed, as after any other death.
    """
    try:
        yield
    except Interrupted as end:
        ledger, told = Ledger.open(), f"interrupted by {end.signal.name}"
        row = ledger.runs.find(spec.name, run_id)
        if row is not None and row.state == "open":
            with contextlib.suppress(SluiceError), ledger.acquire(
                spec.name, run_id, scope=row.interval or ""
            ) as lease:  # fmt: skip
                ledger.record(lease, RunClosed(state="abandoned", error={"what": told}), run_id=run_id)
        err.print(
            f"sluice: run {run_id} was {told}: what it committed stays, and the next run goes on from there",
            markup=False,
        )
        raise


def carry_out(spec: Pipeline, action: Action) -> int:
    """Start the application of an action, and wait for it; return its exit code. Its log goes to stderr.

    Raises
    ------
    ConfigError
        If a connection that it needs is not defined.
    """
    started = submit(spec, action, spark=spark_of(spec), find=find)
    if not isinstance(action, RunAction):
        return LocalProcess.start(started)
    with closing(spec, action.run_id):
        return LocalProcess.start(started)


def dry(spec: Pipeline, action: PlannedAction) -> Any:
    """Return what an action would do, as its application says; nothing is changed.

    Raises
    ------
    typer.Exit
        With the application's exit code, if it fails; its log says why.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        result = Path(folder) / "result.json"
        if code := LocalProcess.start(submit(spec, replace(action, result=result), spark=spark_of(spec), find=find)):
            raise typer.Exit(code)
        return json.loads(result.read_text(encoding="utf-8"))


def spark_of(spec: Pipeline) -> Connection:
    """Return the connection to Spark: ``local[*]`` if the default one is not defined.

    Raises
    ------
    ConfigError
        If the file names another one, which is not defined.
    """
    named = spec.spark.connection
    spark = look_up(named) if named == _SPARK else find(named)
    if spark is None:
        err.print(f"connection {_SPARK!r} is not defined: Spark runs on local[*]", markup=False)
        spark = Connection(_SPARK, "spark", host="local[*]")
    return spark


def ended(spec: Pipeline, run_id: str, code: int, *, as_json: bool) -> int:
    """Print the account of a run that ended (of one that failed, as far as it came); return its exit code.

    Raises
    ------
    QualityError
        If the verdict fails.
    """
    if code != ExitCode.DONE:
        # what it did before it failed; the failure itself was printed above, and decides the exit code
        with contextlib.suppress(SluiceError):
            ledger = Ledger.open()
            error = ledger.runs.known(spec.name, run_id).error or {}
            failed = {"error": error} if error.get("exit_code") == code else {}
            if failed or code not in (ExitCode.LEASE_HELD, ExitCode.HELD):  # these leave an earlier attempt as it was
                _show({**ledger.runs.account(spec.name, run_id), **failed}, as_json=as_json)
    else:
        ledger = Ledger.open()
        account = ledger.runs.account(spec.name, run_id)
        _show(account, as_json=as_json)
        on_failed = spec.quality.on_failed
        if (
            account["verdict"] in FAILED
            and on_failed != "warn"
            and ledger.verdicts.acceptance(spec.name, run_id) is None
        ):
            found = ledger.runs.find(spec.name, run_id)
            pages = (found.judgement or {}).get("data_docs") if found else None
            place = Home.from_env().resolve(spec.quarantine_path)
            refused = f". Refused records are in {place}, with the reason in its column _errors; {way_out(spec)}"
            holds = on_failed == "hold" and found is not None and found.kind == "live"
            settle = f". Then: {', or '.join(settling(spec, run_id))}"
            after = "live runs wait until this is settled" if holds else "the next run goes on after them"
            raise QualityError(
                f"run {run_id!r} of {spec.name!r}: verdict {account['verdict']}",
                state="written rows are in the sink, refused records are in the quarantine, and all of them are "
                f"accounted for; {after}",
                next_step=f"read the reasons above{f', or open {pages}' if pages else ''}"
                f"{refused if account['quarantined'] else ''}{settle if holds else ''}",
            )
    return code


def _show(account: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(account)
        return
    print_table([account], ["run", "recovery", *COUNTS, "verdict", "seconds"])
    for line in lines(account):
        err.print(line, markup=False)
    if read := account.get("tables"):
        err.print(f"tables: {of_tables(read)}", markup=False)
    for note in account.get("notes", []):
        err.print(f"note: {note}", markup=False)
    for why in headed(account["verdict"], account.get("reasons", [])):
        err.print(why, markup=False)
