"""A local Airflow (``airflow standalone``): starts it detached, uses its REST API, and stops all of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.pipeline import pipelines_folder
from sluice.shipped import CHECKOUT, base, shipped

__all__ = ["DEFAULT_PORT", "Airflow"]

DEFAULT_PORT = 8080

_PATIENCE = 120.0
"""Seconds for an answer of the API server, which shares the machine with drivers."""

_USER = "admin"

_POOL = "sluice"
"""What bounds the Spark drivers of all pipelines together; each of them works on two cores."""

_LOCAL_SETTINGS = '''\
"""Written by sluice_demo.airflow.

Airflow on SQLite waits for the write lock, where it would fail at once. A savepoint outside a transaction begins one
that only reads. When it writes later, and another process has committed since, SQLite says "database is locked"
without waiting. `airflow backfill create` makes each run in a savepoint.

Log servers listen on this machine's own address alone; Airflow has no setting for it.
"""

import sys

from sqlalchemy import event
from sqlalchemy.engine import Engine

if sys.argv[1:2] in (["scheduler"], ["triggerer"]):
    import uvicorn

    run = uvicorn.run
    uvicorn.run = lambda *arguments, **options: run(*arguments, **{**options, "host": "127.0.0.1"})


def hostname():
    return "localhost"


@event.listens_for(Engine, "savepoint")
def take_the_write_lock(connection, name):
    if connection.dialect.name == "sqlite" and not connection.connection.driver_connection.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
'''


class Airflow:
    """Scheduler, DAG processor, triggerer and API server of one folder.

    Two objects with the same folder mean the same Airflow. A recorded process id counts only if that process was
    started for this folder.

    Parameters
    ----------
    folder
        ``AIRFLOW_HOME``; created if it does not exist.
    port
        The port of the UI and the API.
    connections
        ``AIRFLOW_CONN_<ID>`` variables for every component.
    dags
        The folder of DAGs.
    settings
        Further environment variables for every component.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = DEFAULT_PORT,
        connections: dict[str, str] | None = None,
        dags: Path = shipped("dags"),
        settings: dict[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.port = port
        self.url = f"http://localhost:{port}"
        self.log_file = self.folder / "standalone.log"
        self._more = {**(connections or {}), **(settings or {})}
        self._dags = Path(dags)
        self._pid_file = self.folder / "standalone.pid"
        self._passwords = self.folder / "simple_auth_manager_passwords.json.generated"
        self._token = ""

    # --- the process -------------------------------------------------------------------------------------------

    @property
    def process(self) -> psutil.Process | None:
        """The standalone process; None if it is not running."""
        try:
            process = psutil.Process(int(self._pid_file.read_text()))
            ours = process.environ().get("AIRFLOW_HOME") == str(self.folder)
            return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, psutil.Error):
            return None

    @property
    def login(self) -> tuple[str, str]:
        """User and password of the UI; created once and stored in the folder."""
        if not self._passwords.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._passwords.touch(mode=0o600)
            self._passwords.write_text(json.dumps({_USER: secrets.token_urlsafe(9)}))
        return _USER, json.loads(self._passwords.read_text())[_USER]

    def start(self, *, timeout: float = 300, report: Callable[[str], None] = lambda _: None) -> None:
        """Start it detached and wait until scheduler, triggerer and DAG processor are healthy.

        Raises
        ------
        ConfigError
            If another program uses the port.
        SluiceError
            If it does not become healthy in time; with the end of its log.
        """
        child: subprocess.Popen[bytes] | None = None
        if self.process is None:
            self._check_port()
            _ = self.login
            self.write_local_settings()
            with self.log_file.open("ab") as log:
                child = subprocess.Popen(
                    [str(Path(sys.executable).with_name("airflow")), "standalone"],
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    start_new_session=True,
                )
            self._pid_file.write_text(str(child.pid))
        deadline = time.monotonic() + timeout
        waiting = ""
        while time.monotonic() < deadline:
            # a process that was just started has no readable environment yet, so it cannot be recognized
            if self.process is None and (child is None or child.poll() is not None):
                break
            state = self._health()
            if not state:
                self._make_pool()
                return
            if state != waiting:
                report(f"Airflow: waiting for {state}")
                waiting = state
            time.sleep(0.5)
        tail = "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])
        raise SluiceError(
            f"Airflow did not come up within {timeout:.0f} s ({waiting or 'it ended'}):\n{tail}",
            state="nothing was read or written",
            next_step=f"read {self.log_file}, then: make down demo",
        )

    def write_local_settings(self) -> None:
        """Write what every component imports before it opens the database."""
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        (self.folder / "config" / "airflow_local_settings.py").write_text(_LOCAL_SETTINGS)

    def stop(self, timeout: float = 30) -> bool:
        """Stop it and all its children; return whether it was running."""
        process = self.process
        if process is None:
            return False
        family = [process, *process.children(recursive=True)]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=timeout)
        for left in alive:
            with contextlib.suppress(psutil.Error):
                left.kill()
        psutil.wait_procs(alive, timeout=5)
        self._pid_file.unlink(missing_ok=True)
        return True

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                raise ConfigError(
                    f"port {self.port} is in use by another program",
                    state="Airflow was not started",
                    next_step="choose another: SLUICE_AIRFLOW_PORT=8081 make demo",
                ) from None

    def environment(self) -> dict[str, str]:
        """Return the environment of each component."""
        # standalone finds its own commands, and the operators spark-submit, on the path
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, **self.settings()}

    def settings(self) -> dict[str, str]:
        """Return the variables with which the commands ``airflow`` and ``sluice`` use this Airflow and its home."""
        settings = {
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "airflow_local_settings.hostname",  # where logs are fetched from
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder}/airflow.db?timeout=30",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",  # its only user is an admin of this machine
            "SLUICE_POOL": _POOL,
            "SLUICE_HOME": Home.from_env().root,
            "SLUICE_PIPELINES": str(pipelines_folder()),
        }
        if CHECKOUT is not None:
            settings["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(CHECKOUT / "plugins")
        # absolute, because the components have different working directories
        if os.environ.get("SLUICE_JARS"):
            settings["SLUICE_JARS"] = str(base() / os.environ["SLUICE_JARS"])
        return {**settings, **self._more}

    def _make_pool(self) -> None:
        """Make the pool of Spark's tasks, if it is not there: a task of a missing pool would wait for ever."""
        slots = max(2, (os.cpu_count() or 2) // 2)  # a backfill, and a live run beside it
        with contextlib.suppress(SluiceError):
            self.call("GET", f"/pools/{_POOL}")
            return
        body = {
            "name": _POOL,
            "slots": slots,
            "description": "Spark drivers of all pipelines",
            "include_deferred": False,
        }
        self.call("POST", "/pools", body)

    def _health(self) -> str:
        """Return the components that are not healthy yet; empty if all are."""
        try:
            answer = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5)
            parts = answer.json() if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            parts = {}
        if not parts:
            return "the API server"
        wanted = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return ", ".join(n for n in wanted if (parts.get(n) or {}).get("status") != "healthy")

    # --- the REST API ------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call ``/api/v2`` with a token, which is renewed when it has expired.

        Raises
        ------
        SluiceError
            If the server refuses, with its message; or does not answer.
        """
        try:
            for fresh in (False, True):
                if fresh or not self._token:
                    user, password = self.login
                    got = httpx.post(
                        f"{self.url}/auth/token", json={"username": user, "password": password}, timeout=_PATIENCE
                    )
                    got.raise_for_status()
                    self._token = got.json()["access_token"]
                answer = httpx.request(
                    method,
                    f"{self.url}/api/v2{path}",
                    json=body,
                    headers={"Authorization": f"Bearer {self._token}"},
                    timeout=_PATIENCE,
                )
                if answer.status_code != 401:
                    break
        except httpx.HTTPError as error:
            raise SluiceError(
                f"Airflow did not answer {method} {path}: {type(error).__name__} {error}".rstrip(),
                next_step=f"read {self.log_file}; on a busy machine, run the same command again",
            ) from error
        if answer.status_code >= 400:
            raise SluiceError(
                f"Airflow refused {method} {path}: {answer.status_code} {answer.text[:500]}",
                next_step=f"read {self.log_file}",
            )
        return answer.json() if answer.content else None

    def wait_for_dag(self, dag_id: str, timeout: float = 300) -> None:
        """Wait until the DAG processor has parsed a DAG.

        Raises
        ------
        SluiceError
            If it does not appear; with the import errors.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            # an API server on a busy machine does not answer while it serves its first task
            with contextlib.suppress(SluiceError):
                self.call("GET", f"/dags/{dag_id}/details")
                return
            time.sleep(0.5)
        errors = self.call("GET", "/importErrors").get("import_errors", [])
        texts = "\n".join(e["stack_trace"][-800:] for e in errors)
        raise SluiceError(f"Airflow has no DAG {dag_id!r}\n{texts}", next_step=f"read {self.log_file}")

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Trigger a run like the UI's form; return its run id."""
        self.unpause(dag_id)
        run = self.call("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf or {}})
        return str(run["dag_run_id"])

    def unpause(self, dag_id: str) -> None:
        """Let Airflow start the runs of a DAG."""
        self.call("PATCH", f"/dags/{dag_id}?update_mask=is_paused", {"is_paused": False})

    def backfill(self, dag_id: str, *arguments: str) -> str:
        """Create a backfill by Airflow's own command; return what it printed.

        Raises
        ------
        SluiceError
            If the command refuses; with its message.
        """
        airflow = str(Path(sys.executable).with_name("airflow"))
        done = subprocess.run(
            [airflow, "backfill", "create", "--dag-id", dag_id, *arguments],
            env=self.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        if done.returncode:
            raise SluiceError(f"Airflow created no backfill: {said[-2000:]}", next_step=f"read {self.log_file}")
        return said

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return a DAG's newest hundred runs, oldest first."""
        newest = self.call("GET", f"/dags/{dag_id}/dagRuns?order_by=-run_after&limit=100")["dag_runs"]
        return [dict(run) for run in reversed(newest)]

    def await_runs(
        self, dag_id: str, which: Callable[[dict[str, Any]], bool], timeout: float = 300
    ) -> list[dict[str, Any]]:
        """Return the runs of a DAG for which ``which`` holds, as soon as there is one.

        Raises
        ------
        SluiceError
            If the scheduler makes none in time.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := [run for run in self.runs(dag_id) if which(run)]:
                return found
            time.sleep(0.5)
        raise SluiceError(f"Airflow made no run of {dag_id} within {timeout:.0f} s", next_step=f"read {self.log_file}")

    def states(
        self, dag_id: str, run_id: str, *, watch: Callable[[], int] = lambda: 0
    ) -> Iterator[tuple[str, dict[str, str], int]]:
        """Yield the run's state, its tasks' states and ``watch()`` whenever one changes, until the run has ended."""
        last: tuple[str, dict[str, str], int] | None = None
        while True:
            run = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")
            tasks = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
            now = (str(run["state"]), {t["task_id"]: str(t["state"] or "none") for t in tasks}, watch())
            if now != last:
                yield now
                last = now
            if now[0] in ("success", "failed"):
                return
            time.sleep(1.0)
