"""``make demo`` and ``make down``: real broker, Airflow, Spark and flights; then a run on lag."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from tests.fixtures.airflow_tables import copy_tables

from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file, archive_stamp, is_whole
from sluice.ledger import Ledger
from sluice.local.kafka import Broker, Topics
from sluice.local.machine import free_port
from sluice.recovery import Recovery
from sluice.shipped import CHECKOUT
from sluice_demo.airflow import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

_FLIGHTS = 336_776

PARCELS = """\
pipeline: parcels
source: {kafka: {topics: [parcels]}}
decode: {text: {}}
sink: {delta: {path: parcels}}
schedule: on_lag
lag: {max_records: 100}
"""


class Stack:
    """The demo in a home of its own, with one pipeline more, which its backlog starts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        pipelines = home / "include" / "pipelines"
        shutil.copytree(CHECKOUT / "include", home / "include", ignore=shutil.ignore_patterns("sluice", "__pycache__"))
        (pipelines / "parcels.yaml").write_text(PARCELS)
        self.kafka_port, self.airflow_port = free_port("127.0.0.1"), free_port("127.0.0.1")
        (home / "jars").mkdir(parents=True)
        for name in ("kafka", "spark"):
            (home / "jars" / name).symlink_to(jars.fetch(name)[0].parent)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "SLUICE", "PYSPARK"))} | {
            "SLUICE_HOME": str(home),
            "SLUICE_PIPELINES": str(pipelines),
            "SLUICE_KAFKA_PORT": str(self.kafka_port),
            "SLUICE_AIRFLOW_PORT": str(self.airflow_port),
        }
        self.airflow = Airflow(home / "airflow", port=self.airflow_port)

    def run(self, action: str) -> subprocess.CompletedProcess[str]:
        """Run ``up`` or ``down`` to its end."""
        argv = [sys.executable, "-m", "sluice_demo.demo", action]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=1500)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(f"sqlite:///{self.home}/ledger.db")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("demo") / "home")
    archive = archive_file(Home.from_env())
    if is_whole(archive):  # `make test` made it a moment ago as the demo would
        (stack.home / "jvm").symlink_to(archive.parent)
    copy_tables(stack.home / "airflow" / "airflow.db")  # as an earlier demo left them
    yield stack
    stack.run("down")


@pytest.fixture(scope="module")
def first(stack: Stack) -> dict[str, Any]:
    """The result that the first ``make demo`` printed."""
    done = stack.run("up")
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_demo_environment_points_a_shell_at_the_stack(stack: Stack, first: dict[str, Any]) -> None:
    asked = ["bash", "-c", 'source "$0"; sluice lag flights --json; echo "$AIRFLOW_HOME"', f"{stack.home}/demo.env"]
    said = subprocess.run(asked, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True)
    lags, folder = said.stdout.splitlines()
    (lag,) = json.loads(lags)
    assert (lag["verdict"], lag["lag"]) == ("OK", 0)
    assert Path(folder) == stack.home / "airflow"


def test_demo_runs_account_for_every_flight(stack: Stack, first: dict[str, Any]) -> None:
    assert set(first) == {"pipeline", "sink", "ui", "produced", "seconds", "runs"}
    assert first["produced"] == _FLIGHTS
    assert len(first["runs"]) == 2
    for run in first["runs"]:
        parts = ("written", "filtered", "quarantined", "absent", "lost")
        assert run["planned"] == sum(run[p] for p in parts)
        assert run["lost"] == 0
        assert run["verdict"] == "passed"
    assert sum(run["planned"] for run in first["runs"]) == _FLIGHTS


def test_demo_table_is_right_for_another_reader(first: dict[str, Any]) -> None:
    table = DeltaTable(first["sink"]).to_pyarrow_table(
        columns=["_topic", "_partition", "_offset", "carrier", "dep_time"]
    )
    offsets = Counter(zip(*(table[c].to_pylist() for c in ("_topic", "_partition", "_offset")), strict=True))
    assert len(offsets) == _FLIGHTS == offsets.total()
    assert pc.sum(pc.equal(table["carrier"], "UA")).as_py() == 58_665
    assert table["dep_time"].null_count == 8_255


def test_demo_backfill_replaced_two_months_and_no_other_row(stack: Stack, first: dict[str, Any]) -> None:
    table = DeltaTable(f"{stack.home}/flights_monthly").to_pyarrow_table(columns=["_timestamp", "_run"])
    months = pc.strftime(table["_timestamp"], format="%Y-%m").to_pylist()
    by = {kind: {m for m, r in zip(months, table["_run"].to_pylist(), strict=True) if r.startswith(kind)}
          for kind in ("scheduled__", "backfill__")}  # fmt: skip
    assert (len(months), by["backfill__"]) == (_FLIGHTS, {"2013-01", "2013-02"})
    assert not by["backfill__"] & by["scheduled__"]
    assert len(by["backfill__"] | by["scheduled__"]) == len(set(months))
    for run in ("backfill__2013-02-01T00:00:00+00:00", "backfill__2013-03-01T00:00:00+00:00"):
        account = stack.ledger.runs.account("flights_monthly", f"{run}__interval")
        assert account["replaced"] == account["written"] > 20_000
        assert account["reason"] == "shown by the demo"


def test_demo_ui_is_up_and_shows_the_form_and_the_doc_of_the_dag(stack: Stack, first: dict[str, Any]) -> None:
    airflow = stack.airflow
    assert httpx.get(f"{first['ui']}/api/v2/version", timeout=30).status_code == 200
    dag = airflow.call("GET", "/dags/flights/details")
    assert set(dag["params"]) == {
        "mode", "start", "end", "reason", "recovery", "max_records_per_batch", "validate",
    }  # fmt: skip
    assert dag["max_active_runs"] == 1
    assert "flights" in dag["doc_md"]
    assert airflow.call("GET", "/importErrors")["total_entries"] == 0


def test_demo_airflow_listens_on_this_machine_alone(stack: Stack, first: dict[str, Any]) -> None:
    process = stack.airflow.process
    assert process is not None
    family = [process, *process.children(recursive=True)]
    heard = {c.laddr for p in family for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert {address for address, _ in heard} <= {"127.0.0.1", "::1"}
    assert {8793, 8794, stack.airflow.port} <= {port for _, port in heard}, "log servers, and the UI"


def test_demo_backlog_starts_one_run_of_a_pipeline_on_lag(stack: Stack, first: dict[str, Any]) -> None:
    topics = Topics(f"127.0.0.1:{stack.kafka_port}")
    topics.create("parcels", 2)
    topics.produce("parcels", [(n % 2, None, b"a parcel") for n in range(120)])
    airflow = stack.airflow
    airflow.wait_for_dag("parcels")
    airflow.unpause("parcels")
    (run,) = airflow.await_runs("parcels", lambda run: True)
    assert (run["run_type"], run["logical_date"]) == ("asset_triggered", None)
    *_, (state, tasks, _) = airflow.states("parcels", run["dag_run_id"])
    assert (state, set(tasks.values())) == ("success", {"success"})
    assert stack.ledger.runs.account("parcels", run["dag_run_id"])["written"] == 120
    assert len(airflow.runs("parcels")) == 1


@pytest.mark.long
def test_demo_side_by_side_dag_runs_five_strategies_on_the_same_topic(stack: Stack, first: dict[str, Any]) -> None:
    airflow = stack.airflow
    run = airflow.trigger("recovery_side_by_side")
    *_, (state, tasks, _) = airflow.states("recovery_side_by_side", run)
    assert (state, len(tasks)) == ("success", 4 * len(Recovery))
    asked = {
        "delays": "replay", "archive": "wal", "punctuality": "hot", "board": "ignore_range", "pulse": "ignore_batch",
    }  # fmt: skip
    for group, strategy in asked.items():
        task = f"/dags/recovery_side_by_side/dagRuns/{run}/taskInstances/{group}.account"
        account = airflow.call("GET", f"{task}/xcomEntries/return_value?deserialize=true")["value"]
        assert account["recovery"] == strategy
        assert (account["planned"], account["lost"]) == (_FLIGHTS, 0)
        assert account["written"] + account["filtered"] == _FLIGHTS
        degraded = [note for note in account.get("notes", []) if "continued as replay" in note]
        assert len(degraded) == (group == "punctuality"), "a local master has one executor"


def test_demo_started_twice_finds_everything_there_and_down_ends_it_all(stack: Stack, first: dict[str, Any]) -> None:
    again = stack.run("up")
    assert again.returncode == 0, again.stderr[-4000:]
    assert "are there already" in again.stderr
    result = json.loads(again.stdout.splitlines()[-1])
    assert (result["produced"], result["runs"]) == (first["produced"], first["runs"])
    assert "airflow backfill create" not in again.stderr.partition("Try next")[0]

    airflow = stack.airflow
    broker = Broker(stack.home / "kafka", port=stack.kafka_port)
    family = [airflow.process.pid, *(p.pid for p in airflow.process.children(recursive=True)), broker.pid]
    assert stack.run("down").returncode == 0
    left = [p for p in family if p and psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]
    assert left == []


def test_demo_names_a_port_in_use_and_the_variable_for_another(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "home")
    archive = archive_file(Home(str(stack.home)))
    archive.parent.mkdir()
    archive.touch()  # newer than the jars and whole: nothing to make
    archive.with_suffix(".stamp").write_text(archive_stamp(archive))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", stack.kafka_port))
        taken.listen()
        done = stack.run("up")
    assert done.returncode == 10
    assert str(stack.kafka_port) in done.stderr
    assert "SLUICE_KAFKA_PORT" in done.stderr
    assert "Traceback" not in done.stderr
