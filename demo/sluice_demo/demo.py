"""``make demo``: real flights, a real broker, a real Airflow, two live runs and a backfill; and ``make down``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from sluice.cli.output import COUNTS, print_json, print_table
from sluice.connections import find, variable_of
from sluice.delta.table import Table
from sluice.errors import SluiceError
from sluice.home import Home
from sluice.lag.current import backlog
from sluice.launch import jars
from sluice.ledger import Ledger
from sluice.local import archive
from sluice.local.kafka import DEFAULT_PORT as KAFKA_PORT
from sluice.local.kafka import Broker
from sluice.pipeline import load, pipelines_folder
from sluice.text import run_of_interval
from sluice_demo import flights
from sluice_demo.airflow import DEFAULT_PORT as AIRFLOW_PORT
from sluice_demo.airflow import Airflow

__all__ = ["main"]

_PIPELINE = "flights"
_FIRST_PART_ENDS = "2013-12-01"
_MONTHLY = "flights_monthly"
_MONTHS = ("2013-01", "2013-02")
"""The two months that the demo reprocesses in the pipeline for backfills."""

_DOWN = "make down"

_say = Console(stderr=True, highlight=False, soft_wrap=True).print


class Demo:
    """The local stack of the demo, below ``SLUICE_HOME``."""

    def __init__(self) -> None:
        self.home = Home.from_env()
        root = Path(self.home.root)
        self.broker = Broker(root / "kafka", port=int(os.environ.get("SLUICE_KAFKA_PORT") or KAFKA_PORT))
        bootstrap = f"127.0.0.1:{self.broker.port}"
        self.connections = {
            variable_of("kafka_default"): json.dumps(
                {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}},
            ),
            variable_of("spark_default"): json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }
        self.airflow = Airflow(
            root / "airflow",
            port=int(os.environ.get("SLUICE_AIRFLOW_PORT") or AIRFLOW_PORT),
            connections=self.connections,
        )

    def up(self) -> dict[str, Any]:
        """Start everything, run the pipeline twice, backfill another, and leave the UI running.

        Returns
        -------
        dict
            What ``make demo`` prints last.
        """
        began = time.monotonic()
        self._step("jars")
        for name in ("kafka", "spark"):
            jars.fetch(name, report=_say)
        self._step("class-data archive for Spark")
        archive.make(report=_say)
        self._step(f"Kafka on port {self.broker.port}")
        self.broker.start(detach=True)
        self._step(f"Airflow on port {self.airflow.port}")
        self.airflow.start(report=_say)
        self.airflow.wait_for_dag(_PIPELINE)

        produced = 0
        for title, start, until in (
            ("January to November", None, _FIRST_PART_ENDS),
            ("December", _FIRST_PART_ENDS, None),
        ):
            self._step(f"producing the flights of {title}")
            fed = flights.feed(self.broker.bootstrap, start=_date(start), until=_date(until), report=_say)
            produced += fed.produced + fed.already
            if not fed.produced:
                _say(f"  the {fed.already:,} flights are there already")
            self._run_if_needed()
        reprocessed = self._backfill()

        spec, ledger = load(_PIPELINE), Ledger.open()
        runs = [ledger.runs.account(_PIPELINE, r.run) for r in reversed(ledger.runs.newest(_PIPELINE, limit=50))]
        user, password = self.airflow.login
        useful = [r for r in runs if r["planned"]]
        result = {
            "pipeline": _PIPELINE,
            "sink": self.home.resolve(spec.sink.config.location),
            "ui": self.airflow.url,
            "produced": produced,
            "seconds": round(time.monotonic() - began, 1),
            "runs": useful,
        }
        print_table(useful, ["run", "recovery", *COUNTS, "verdict", "seconds"])
        _say(f"\nRows of {_MONTHLY} by month, and the run that wrote them:")
        print_table(reprocessed, ["month", "before", "by", "after", "now by"])
        _say(f"\nThe table: {result['sink']}\nThe UI: {self.airflow.url}/dags/{_PIPELINE}  (login {user} / {password})")
        _say(f"For commands of your own (sluice, airflow) in a shell: source {self._write_environment()}")
        _say(f"Ask: sluice status, sluice lag flights, sluice audit flights. End it all: {_DOWN}")
        _say(self.next_steps(), markup=False)
        return result

    def next_steps(self) -> str:
        """Return what to try next: a run by the form, a backfill, a start by the backlog."""
        folder = pipelines_folder()
        return f"""
Try next, in a shell that has sourced the file above:
1. A month by the form. {self.airflow.url}/dags/{_MONTHLY}, button Trigger:
   mode interval, start 2013-07-01T00:00:00Z, end 2013-08-01T00:00:00Z
2. A backfill of three months:
   airflow backfill create --dag-id {_MONTHLY} --from-date 2013-03-01 --to-date 2013-05-01 --max-active-runs 2
3. A pipeline that the backlog starts. Write it, and switch it on when the UI shows it (within a minute):
   sed -E 's/^(pipeline|.*path): {_PIPELINE}\\b/&_on_lag/; s/^schedule: .*/schedule: on_lag/' \\
     {folder}/{_PIPELINE}.yaml > {folder}/{_PIPELINE}_on_lag.yaml
   airflow dags unpause flights_on_lag; sluice lag flights_on_lag --watch"""

    def _write_environment(self) -> Path:
        """Write the variables with which commands in a shell use this stack; it contains no secret."""
        file = Path(self.home.root) / "demo.env"
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.airflow.settings().items()]
        lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
        file.write_text("\n".join(lines) + "\n")
        return file

    def down(self) -> None:
        """Stop what :meth:`up` started, and nothing else."""
        was = "stopped" if self.airflow.stop() else "was not running"
        _say(f"Airflow {was}")
        running = self.broker.running
        self.broker.stop()
        _say(f"Kafka {'stopped' if running else 'was not running'}")

    def _run_if_needed(self) -> None:
        """If records wait, trigger a run as a user would, and wait for its end."""
        os.environ.update(self.connections)
        spec = load(_PIPELINE)
        with spec.source.kind.cluster(find(spec.kafka.active)) as cluster:
            found = backlog(spec, cluster, home=self.home, ledger=Ledger.open())
        if found.error is not None:
            raise found.error
        waiting = found.records
        if not waiting:
            _say("  nothing waits: every record was already processed")
            return
        self._follow(_PIPELINE, self.airflow.trigger(_PIPELINE), waiting)

    def _backfill(self) -> list[dict[str, Any]]:
        """Switch the monthly pipeline on, and reprocess two of its months; return its rows by month, before and after.

        A second call finds the runs of the first one, and makes none.
        """
        self._step(f"{_MONTHLY} is switched on: its schedule starts a run for all that is there")
        self.airflow.wait_for_dag(_MONTHLY)
        self.airflow.unpause(_MONTHLY)
        live = self.airflow.await_runs(_MONTHLY, lambda run: run["run_type"] != "backfill")[-1]
        # of an earlier demo, perhaps, which was interrupted
        again = live["state"] == "failed"
        self._follow(_MONTHLY, self.airflow.trigger(_MONTHLY) if again else live["dag_run_id"])
        before = self._months()
        if not self._backfilled():
            first, last = (f"{month}-01" for month in _MONTHS)
            options = ["--from-date", first, "--to-date", last, "--max-active-runs", "2"]
            self._step(f"airflow backfill create --dag-id {_MONTHLY} {' '.join(options)}")
            self.airflow.backfill(_MONTHLY, *options, "--dag-run-conf", json.dumps({"reason": "shown by the demo"}))
        for run in self._backfilled():
            self._follow(_MONTHLY, run, interval=True)
        after = self._months()
        return [
            {"month": month, "before": rows, "by": by, "after": after[month][0], "now by": after[month][1]}
            for month, (rows, by) in before.items()
        ]

    def _backfilled(self) -> list[str]:
        return [run["dag_run_id"] for run in self.airflow.runs(_MONTHLY) if run["run_type"] == "backfill"]

    def _months(self) -> dict[str, tuple[int, str]]:
        """Return how many rows the backfilled months have, and all others together, and which runs wrote them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        path = self.home.resolve(load(_MONTHLY).sink.config.location)
        rows = pa.Table.from_batches(Table.open("sink", path).rows(["_timestamp", "_run"]))
        named = pa.table({"month": pc.strftime(rows["_timestamp"], format="%Y-%m"), "run": rows["_run"]})
        found: dict[str, tuple[int, set[str]]] = {month: (0, set()) for month in (*_MONTHS, "all others")}
        for part in named.group_by(["month", "run"]).aggregate([([], "count_all")]).to_pylist():
            month = part["month"] if part["month"] in _MONTHS else "all others"
            count, by = found[month]
            found[month] = (count + part["count_all"], by | {part["run"]})
        return {month: (count, ", ".join(sorted(by))) for month, (count, by) in found.items()}

    def _follow(self, dag: str, run: str, waiting: int | None = None, *, interval: bool = False) -> None:
        """Say how a run goes, and return when it has succeeded."""
        self._step(f"run {run}" + (f": {waiting:,} records wait" if waiting is not None else ""))
        ledger, name = Ledger.open(), run_of_interval(run) if interval else run

        def accounted() -> int:
            return sum(len(a.range) for a in ledger.offsets.accounts(dag, name))

        for state, tasks, done in self.airflow.states(dag, run, watch=accounted):
            shown = ", ".join(f"{t} {s}" for t, s in tasks.items() if s != "none")
            of = f" of {waiting:,}" if waiting is not None else ""
            _say(f"  {state}: {shown or 'scheduled'}; {done:,}{of} offsets accounted for")
        if state != "success":
            raise SluiceError(
                f"run {run} ended as {state}",
                state="what was committed is in the table; see sluice status",
                next_step=f"read the task's log in the UI: {self.airflow.url}/dags/{dag}/runs/{run}",
            )

    @staticmethod
    def _step(text: str) -> None:
        _say(f"[bold]{time.strftime('%H:%M:%S')} {text}[/bold]")


def _date(text: str | None) -> Any:
    from datetime import UTC, datetime

    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None


def main(argv: list[str] | None = None) -> int:
    """Run ``up`` or ``down``; the last line of ``up`` on stdout is one JSON object."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    action = parser.parse_args(argv).action
    try:
        demo = Demo()
        if action == "up":
            print_json(demo.up())
        else:
            demo.down()
    except SluiceError as error:
        _say(f"sluice: error: {error}", markup=False)
        return int(error.exit_code) or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
