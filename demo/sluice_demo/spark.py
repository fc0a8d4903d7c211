"""A Spark standalone cluster on this machine, from the installed pyspark: its executors can die, unlike ``local[N]``.

The wheel has no scripts to start a cluster, only the classes: one master, and workers that start an executor for each
application.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import httpx
import psutil  # type: ignore[import-untyped]

from sluice.errors import ConfigError, SluiceError
from sluice.local.machine import free_port

__all__ = ["SparkCluster"]

_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dspark.port.maxRetries=0",
    "-Dspark.master.rest.enabled=false",
)

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master and its workers, whose logs, work folders and scratch space are in one folder.

    Each process leads a session of its own, so that everything it starts can be found: executors, and the Python
    workers of killed executors. The processes end with :meth:`stop`, at the latest when this process exits.

    Parameters
    ----------
    folder
        The folder; created if it does not exist.
    workers
        The number of workers; an application gets one executor on each.
    cores
        Cores of each worker.
    memory
        Memory of each worker for executors, in Spark's notation; an executor takes 1 GB by default.
    host
        Address of master and workers, and of the executors for their driver.
    """

    def __init__(
        self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g", *, host: str = "127.0.0.1"
    ) -> None:
        self.folder = Path(folder).absolute()
        self.workers = workers
        self.cores = cores
        self.memory = memory
        self.host = host
        self._port = 0
        self._ui_port = 0
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def master(self) -> str:
        """The master's URL, for ``--master`` or the host of an Airflow connection."""
        if not self._children:
            raise SluiceError("the cluster is not running", state="nothing was started", next_step="start() it")
        return f"spark://{self.host}:{self._port}"

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers, in the order of their folders."""
        return [child.pid for name, child in self._children.items() if name != "master"]

    def executor_pids(self) -> dict[str, list[int]]:
        """Return the process ids of live executors, by application; at most one per worker."""
        found: dict[str, list[int]] = {}
        for pid in self.worker_pids:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(pid).children():
                    application = _application(child)
                    if application:
                        found.setdefault(application, []).append(child.pid)
        return found

    def log_file(self, name: str) -> Path:
        """Return the log of ``master`` or ``worker-N``; executors log into the worker's folder."""
        return self.folder / f"{name}.log"

    def start(self, timeout: float = 60) -> Self:
        """Start it unless it is running, and return when all workers have registered with the master.

        Raises
        ------
        ConfigError
            If pyspark is not installed.
        SluiceError
            If a process ended, or the workers did not register in time; with the end of the log.
        """
        if self._children:
            return self
        deadline = time.monotonic() + timeout
        self.folder.mkdir(parents=True, exist_ok=True)
        self._port = free_port(self.host)
        self._ui_port = free_port(self.host, avoid=self._port)
        atexit.register(self.kill)
        try:
            # workers retry to reach the master only every few seconds, so it must be up first
            self._launch("master", "master.Master", "-p", self._port, "--webui-port", self._ui_port)
            self._await(lambda: self._state().get("status") == "ALIVE", deadline, "master", "the master did not answer")
            for number in range(self.workers):
                size = ["-c", self.cores, "-m", self.memory, "-d", self.folder / f"worker-{number}"]
                self._launch(f"worker-{number}", "worker.Worker", *size, "--webui-port", 0, self.master)
            self._await(
                lambda: self._state().get("aliveworkers") == self.workers,
                deadline,
                f"worker-{self.workers - 1}",
                f"{self.workers} workers did not register",
            )
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, timeout: float = 20) -> None:
        """Stop all processes with SIGTERM, after ``timeout`` seconds with SIGKILL; wait for their end. Idempotent."""
        self._end(signal.SIGTERM, timeout)
        self.kill()

    def kill(self) -> None:
        """Kill all processes with SIGKILL, and wait for their end. Idempotent."""
        left = self._end(signal.SIGKILL, 20)
        if left:
            raise SluiceError(f"processes {left} of the Spark cluster are still there 20 s after SIGKILL")
        for child in self._children.values():
            child.wait()
        self._children.clear()
        atexit.unregister(self.kill)

    def _end(self, number: signal.Signals, timeout: float) -> list[int]:
        deadline = time.monotonic() + timeout
        told: set[int] = set()
        while family := self._family():
            for process in family:
                if process.pid not in told:
                    told.add(process.pid)
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(number)
            if time.monotonic() > deadline:
                return [process.pid for process in family]
            time.sleep(0.02)
        return []

    def _family(self) -> list[Any]:
        """Return all live processes of the children's sessions.

        The children are reaped only when all have ended, so until then their process ids cannot be reused.
        """
        sessions = {child.pid for child in self._children.values()}
        found = []
        for process in psutil.process_iter() if sessions else ():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _launch(self, name: str, main: str, *arguments: object) -> None:
        # executors inherit the workers' environment, which must not contain connections or Spark settings
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "SLUICE_", "AIRFLOW_"))}
        env = {
            **inherited,
            "SPARK_HOME": str(_spark_home()),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(_JVM_FLAGS),
        }
        command = [str(_spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", "-h", self.host]
        with self.log_file(name).open("ab") as log:
            self._children[name] = subprocess.Popen(
                [*command, *map(str, arguments)],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _await(self, condition: Any, deadline: float, name: str, otherwise: str) -> None:
        while not condition():
            for each, child in self._children.items():
                if psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE:
                    raise self._failure(each, f"Spark's {each} ended while starting")
            if time.monotonic() > deadline:
                raise self._failure(name, f"{otherwise} in time")
            time.sleep(0.05)

    def _state(self) -> dict[str, Any]:
        try:
            answer = httpx.get(f"http://{self.host}:{self._ui_port}/json/", timeout=5, trust_env=False)
            state: dict[str, Any] = answer.json() if answer.status_code == httpx.codes.OK else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return state

    def _failure(self, name: str, what: str) -> SluiceError:
        log = self.log_file(name)
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return SluiceError(
            "\n    ".join([f"{what}; the end of its log:", *tail]),
            state="the whole cluster was stopped again",
            next_step=f"read {log}",
        )


def _application(process: Any) -> str:
    """Return the application of an executor; empty for any other process, or for one that was just started."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        if _EXECUTOR in words and "--app-id" in words:
            return str(words[words.index("--app-id") + 1])
    return ""


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    for folder in (found.submodule_search_locations or []) if found else []:
        return Path(folder)
    raise ConfigError("pyspark is not installed here", state="nothing was started", next_step="make setup")
