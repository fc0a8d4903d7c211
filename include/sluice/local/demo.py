"""``make demo``: real flights, a real broker, a real Airflow, two real runs; and ``make down``."""

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
from sluice.connections import variable_of
from sluice.errors import SluiceError
from sluice.home import Home
from sluice.lag.current import backlog
from sluice.launch import jars
from sluice.ledger import Ledger
from sluice.local import archive, flights
from sluice.local.airflow import DEFAULT_PORT as AIRFLOW_PORT
from sluice.local.airflow import Airflow
from sluice.local.kafka import DEFAULT_PORT as KAFKA_PORT
from sluice.local.kafka import Broker
from sluice.pipeline import load
from sluice.shipped import CHECKOUT, shipped
from sluice.sources.kafka import Cluster, KafkaSettings

__all__ = ["main"]

_PIPELINE = "flights"
_FIRST_PART_ENDS = "2013-12-01"
_DOWN = "make down" if CHECKOUT else "python -m sluice.local.demo down"

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
        """Start everything, run the pipeline twice, and leave the UI running; return what ``make demo`` prints."""
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

        spec, ledger = load(_PIPELINE), Ledger.open()
        runs = [ledger.account(_PIPELINE, r.run) for r in reversed(ledger.runs(_PIPELINE, limit=50))]
        user, password = self.airflow.login
        useful = [r for r in runs if r["planned"]]
        result = {
            "pipeline": _PIPELINE,
            "sink": self.home.resolve(spec.sink.config.path),
            "ui": self.airflow.url,
            "produced": produced,
            "seconds": round(time.monotonic() - began, 1),
            "runs": useful,
        }
        print_table(useful, ["run", "recovery", *COUNTS, "verdict", "seconds"])
        _say(f"\nThe table: {result['sink']}\nThe UI: {self.airflow.url}/dags/{_PIPELINE}  (login {user} / {password})")
        _say(f"For commands of your own (sluice, airflow) in a shell: source {self._write_environment()}")
        _say(f"Ask: sluice status, sluice lag flights, sluice audit flights. End it all: {_DOWN}")
        return result

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
        settings = KafkaSettings(self.broker.bootstrap, {"bootstrap.servers": self.broker.bootstrap})
        with Cluster(settings) as cluster:
            found = backlog(load(_PIPELINE), cluster, home=self.home, ledger=Ledger.open())
        if found.error is not None:
            raise found.error
        waiting = found.records
        if not waiting:
            _say("  nothing waits: every record was already processed")
            return
        run = self.airflow.trigger(_PIPELINE)
        self._step(f"run {run}: {waiting:,} records wait")
        ledger = Ledger.open()

        def accounted() -> int:
            return sum(len(a.range) for a in ledger.accounts(_PIPELINE, run))

        for state, tasks, done in self.airflow.states(_PIPELINE, run, watch=accounted):
            shown = ", ".join(f"{t} {s}" for t, s in tasks.items() if s != "none")
            _say(f"  {state}: {shown or 'scheduled'}; {done:,} of {waiting:,} offsets accounted for")
        if state != "success":
            raise SluiceError(
                f"run {run} ended as {state}",
                state="what was committed is in the table; see sluice status",
                next_step=f"read the task's log in the UI: {self.airflow.url}/dags/{_PIPELINE}/runs/{run}",
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
    if CHECKOUT is None:  # the flights come with the wheel
        os.environ.setdefault("SLUICE_PIPELINES", str(shipped("include/pipelines")))
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
