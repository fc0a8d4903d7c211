"""``sluice run``: starts spark-submit, waits for it, prints the account."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from sluice.cli.output import COUNTS, err, print_json, print_table
from sluice.connections import Connection, variable_of
from sluice.errors import ExitCode, QualityError, SluiceError
from sluice.home import Home
from sluice.lag.current import waiting
from sluice.launch.submit import SparkSubmit, bounded_run
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery
from sluice.run.request import RunRequest

__all__ = ["connections", "drive", "spark_run"]


def drive(
    pipeline: str,
    run: str,
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

    The log of the application goes to stderr. A verdict that fails raises :class:`QualityError`.
    With ``as_json`` stdout ends with the run's account on one line, also when the run failed, as far as it was planned.

    Parameters
    ----------
    start, end
        Of an interval of record time, in ISO 8601; None for what is available now.
    """
    spec = load(pipeline)
    request = RunRequest.of(
        spec,
        run,
        recovery=recovery,
        max_records_per_batch=max_records_per_batch,
        start=start,
        end=end,
        reason=reason,
        validate=validate,
    )
    spark, kafka = connections(spec)
    epoch = Ledger.open().epoch(spec.name)
    waits = None if request.interval else waiting(spec, kafka, home=Home.from_env(), epoch=epoch)
    submit = bounded_run(spec, request, spark=spark, kafka=kafka, waiting=waits)
    return spark_run(spec, run, submit, as_json=as_json)


def connections(spec: Pipeline) -> tuple[Connection, Connection | None]:
    """Return the connections to Spark (``local[*]`` when none is named) and to the source, if it needs one.

    Raises
    ------
    ConfigError
        When one that the file names is not defined.
    """
    named = spec.spark.connection
    if named != "spark_default" or os.environ.get(variable_of(named)):
        spark = Connection.from_env(named)
    else:
        err.print(f"{variable_of('spark_default')} is not set: Spark runs here, on local[*]", markup=False)
        spark = Connection("spark_default", "spark", host="local[*]")
    needs = spec.source.config.needs
    return spark, Connection.from_env(needs) if needs else None


def spark_run(spec: Pipeline, run: str, submit: SparkSubmit, *, as_json: bool) -> int:
    """Start a run's application, wait, print its account (of one that failed, as far as it came); return the exit code.

    Raises
    ------
    QualityError
        When the verdict fails.
    """
    code = _run(submit.argv(), submit.env)
    if code != ExitCode.DONE:
        # what it did before it failed; the failure itself was said above, and counts
        with contextlib.suppress(SluiceError, KeyError):
            _show(Ledger.open().account(spec.name, run), as_json=as_json)
    else:
        ledger = Ledger.open()
        account = ledger.account(spec.name, run)
        _show(account, as_json=as_json)
        if account["verdict"] in ("failed", "error") and spec.quality.on_failed == "fail":
            found = ledger.run(spec.name, run)
            pages = (found.judgement or {}).get("data_docs") if found else None
            place = Home.from_env().resolve(spec.quarantine_path)
            refused = (
                f". Refused records are in {place}, and why in its column _errors; when the cause is fixed: "
                f"sluice redrive {spec.name} --quarantined"
            )
            raise QualityError(
                f"run {run!r} of {spec.name!r}: verdict {account['verdict']}",
                state="what was written is in the sink, what was refused is in the quarantine, and all of it is "
                "accounted for; the next run goes on behind it",
                next_step=f"read the reasons above{f', or open {pages}' if pages else ''}"
                f"{refused if account['quarantined'] else ''}",
            )
    return code


def _show(account: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(account)
        return
    print_table([account], ["run", "recovery", *COUNTS, "verdict", "seconds"])
    for note in account.get("notes", []):
        err.print(f"note: {note}", markup=False)
    for why in account.get("reasons", []):
        err.print(f"{account['verdict']}: {why}", markup=False)


def _run(argv: list[str], env: dict[str, str]) -> int:
    # a group of its own: Ctrl-C and SIGTERM end the driver whole, JVM and Python
    with subprocess.Popen(
        argv, env={**os.environ, **env}, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True
    ) as child:

        def end(number: int, _frame: Any) -> None:
            os.killpg(child.pid, signal.SIGTERM)
            raise SystemExit(128 + number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        return child.wait()
