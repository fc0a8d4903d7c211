"""A one-node Kafka broker from the locked jars, for trials, demos and tests."""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil  # type: ignore[import-untyped]

from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.programs import java
from sluice.local.machine import free_port, is_free, is_listening
from sluice.local.topics import Record, Topics

__all__ = ["DEFAULT_PORT", "Broker", "Listeners", "Record", "Topics", "main"]

DEFAULT_PORT = 9092

_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)

_16_MIB = 16 * 1024 * 1024

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "message.max.bytes": _16_MIB,
    "replica.fetch.max.bytes": _16_MIB,
    "group.initial.rebalance.delay.ms": 0,
    # After a crash the node can register again only when its former session has expired: 9 s by default.
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 4,
    # The default is a quarter of this broker's heap.
    "log.cleaner.dedupe.buffer.size": _16_MIB,
    # Check compacted topics every second instead of every 15.
    "log.cleaner.backoff.ms": 1000,
}


class Listeners(Protocol):
    """Listeners beside the plain one."""

    def settings(self, host: str, plain: Mapping[str, object]) -> dict[str, object]:
        """Return the broker settings that they add to the plain ones, or change."""

    def credentials(self) -> list[str]:
        """Return further arguments for formatting the storage."""


class Broker:
    """A broker whose data, settings, log and process id are in one folder.

    Two objects with the same folder, in one process or in two, mean the same broker. A recorded process id counts only
    if that process was started with this folder's settings, so a recycled id is never mistaken for the broker.

    Parameters
    ----------
    data_dir
        The folder; created if it does not exist, and formatted by the first start.
    port
        Port to listen on; 0 takes a free one, and after a stop or crash the same one if it is still free.
    controller_port
        Port of the node's own quorum; 0 takes a free one at each start.
    host
        Address to listen on and to advertise.
    heap
        The JVM's ``-Xmx``.
    jar_files
        The ``kafka`` set; by default looked up at the start in the folder to which it was fetched.
    secure
        Further listeners, such as those that require a login or a certificate.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = DEFAULT_PORT,
        controller_port: int = 0,
        host: str = "127.0.0.1",
        heap: str = "512m",
        jar_files: Sequence[Path] | None = None,
        secure: Listeners | None = None,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.host = host
        self.heap = heap
        self.log_file = self.data_dir / "broker.log"
        self._port = port
        self._controller_port = controller_port
        self._jar_files = jar_files
        self._secure = secure
        self._properties = self.data_dir / "server.properties"
        self._state_file = self.data_dir / "broker.json"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port on which it listens; with ``port=0`` it is 0 until the first start."""
        return self._port or int(self._state().get("port", 0))

    @property
    def bootstrap(self) -> str:
        """``host:port`` for a client's ``bootstrap_servers``."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id; None if it is not running. A paused broker is running."""
        if self._child is not None:
            self._child.poll()  # a child that ended stays a zombie until it is polled
        pid = self._state().get("pid")
        if not isinstance(pid, int):
            return None
        try:
            process = psutil.Process(pid)
            ours = process.status() != psutil.STATUS_ZOMBIE and str(self._properties) in process.cmdline()
        except psutil.Error:
            return None
        return pid if ours else None

    @property
    def running(self) -> bool:
        """Whether the broker's process is alive."""
        return self.pid is not None

    def start(self, timeout: float = 60, *, detach: bool = False) -> Broker:
        """Start the broker unless it is running, and return when it serves requests.

        Parameters
        ----------
        timeout
            Seconds to wait for it.
        detach
            Whether it outlives this process; otherwise it is killed when this process exits.

        Raises
        ------
        ConfigError
            If another program uses the port, the jars or Java are missing, or it already runs on another port.
        SluiceError
            If it ended, or did not serve requests in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with jars.exclusive(self.data_dir / ".lock"):
            if self.running:
                self._refuse_other_port()
            else:
                self._launch()
                if not detach:
                    atexit.register(self.kill)
            self._await_service(deadline)
        return self

    def stop(self, timeout: float = 30) -> None:
        """Stop the broker with SIGTERM, and after ``timeout`` seconds with SIGKILL; wait for its end. Idempotent."""
        pid = self.pid
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if not self._ended(pid, timeout):
            self.kill()
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, like a crash, and wait for its end. Idempotent."""
        pid = self.pid
        self._signal(signal.SIGKILL)
        if not self._ended(pid, 10):
            raise SluiceError(f"the broker (process {pid}) is still there 10 s after SIGKILL")
        atexit.unregister(self.kill)

    def pause(self) -> None:
        """Freeze the broker: connections stay open, but after this call it does not answer."""
        self._signal(signal.SIGSTOP)
        until = time.monotonic() + 10
        while not self._is_frozen() and time.monotonic() < until:
            time.sleep(0.01)

    def _is_frozen(self) -> bool:
        """Return whether each thread has stopped; one that has not may still answer."""
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                if stat.read_text().rpartition(")")[2].split()[0] not in "TZX":
                    return False
        return True

    def resume(self) -> None:
        """Resume a paused broker."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _ended(self, pid: int | None, timeout: float) -> bool:
        """Wait for the end of the process and its sockets: a dying process loses its command line before its port."""
        deadline = time.monotonic() + timeout
        while pid is not None and (_is_alive(pid, self._child) or not is_free(self.host, self.port)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _launch(self) -> None:
        program = java()
        class_path = os.pathsep.join(map(str, self._jar_files or jars.paths("kafka")))
        state = self._state()
        port = self._port or free_port(self.host, int(state.get("port", 0)))
        if not is_free(self.host, port):
            raise ConfigError(
                f"port {port} on {self.host} is in use by another program",
                state="nothing was started",
                next_step="end that program, or choose another port: SLUICE_KAFKA_PORT=PORT or --port PORT",
            )
        controller_port = self._controller_port or free_port(self.host, avoid=port)
        state |= {"port": port, "pid": None}
        state.setdefault("cluster_id", base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        self._write_state(state)
        self._write_properties(port, controller_port)
        command = [program, f"-Xmx{self.heap}", *_JVM_FLAGS, "-cp", class_path]
        with self.log_file.open("ab") as log:
            if not state.get("formatted"):
                # Tolerates the leftovers of a format that was killed halfway.
                identity = f"--cluster-id={state['cluster_id']}"  # one argument: one id in 64 begins with a dash
                tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", identity]
                tool += self._secure.credentials() if self._secure else []
                done = subprocess.run(
                    [*command, *tool, "-c", str(self._properties)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    check=False,
                )
                if done.returncode:
                    raise self._failure(f"formatting {self.data_dir} failed with exit code {done.returncode}")
                state["formatted"] = True
            # In a session of its own, so that Ctrl-C in the terminal does not reach the broker.
            self._child = subprocess.Popen(
                [*command, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._write_state(state | {"pid": self._child.pid})

    def _await_service(self, deadline: float) -> None:
        while True:
            # a child that was just started may have no command line yet, so it cannot be recognized
            alive = self._child is not None and self._child.poll() is None
            if not alive and not self.running:
                code = self._child.returncode if self._child else "unknown"
                raise self._failure(f"the broker ended while starting (exit code {code})")
            if is_listening(self.host, self.port) and self._serves():
                return
            if time.monotonic() > deadline:
                raise self._failure("the broker runs but did not serve in time")
            time.sleep(0.05)

    def _serves(self) -> bool:
        """Return whether the node is registered as a broker; it accepts connections a little earlier."""
        from kafka.errors import KafkaError

        try:
            return Topics(self.bootstrap, timeout=5).broker_count() > 0
        except (KafkaError, SluiceError):
            return False

    def _refuse_other_port(self) -> None:
        running_on = int(self._state()["port"])
        if self._port not in (0, running_on):
            raise ConfigError(
                f"this broker already runs on port {running_on}, not on {self._port}",
                state=f"the broker is unchanged; its data is in {self.data_dir}",
                next_step=f"use port {running_on}, or stop it first: python -m sluice.local.kafka stop",
            )

    def _failure(self, what: str) -> SluiceError:
        tail = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return SluiceError(
            "\n    ".join([f"{what}; the end of its log:", *tail]),
            state=f"kept in {self.data_dir}",
            next_step=f"read {self.log_file}",
        )

    def _write_properties(self, port: int, controller_port: int) -> None:
        listen = f"PLAINTEXT://{self.host}:{port}"
        settings = _SETTINGS | {
            "listeners": f"{listen},CONTROLLER://{self.host}:{controller_port}",
            "advertised.listeners": listen,
            "controller.quorum.voters": f"1@{self.host}:{controller_port}",
            "log.dirs": self.data_dir / "data",
        }
        if self._secure is not None:
            settings |= self._secure.settings(self.host, settings)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return state

    def _write_state(self, state: dict[str, Any]) -> None:
        temporary = self._state_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(self._state_file)


def _is_alive(pid: int, child: subprocess.Popen[bytes] | None) -> bool:
    if child is not None and child.pid == pid:
        return child.poll() is None
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def main(argv: list[str] | None = None) -> int:
    """Start or stop a broker of one node, which the demo uses, too, in ``SLUICE_HOME/kafka``, or show its status."""
    parser = argparse.ArgumentParser(prog="python -m sluice.local.kafka", description=main.__doc__)
    parser.add_argument("action", choices=["start", "stop", "status"])
    default = os.environ.get("SLUICE_KAFKA_PORT") or str(DEFAULT_PORT)
    parser.add_argument("--port", type=int, default=default, help="default: SLUICE_KAFKA_PORT or 9092")
    options = parser.parse_args(argv)
    broker = Broker(Path(Home.from_env().join("kafka")), port=0 if options.action != "start" else options.port)
    try:
        if options.action == "start":
            jars.fetch("kafka", report=lambda line: _say(sys.stderr, f"kafka {line}"))
            broker.start(detach=True)
        elif options.action == "stop":
            broker.stop()
    except SluiceError as error:
        _say(sys.stderr, str(error))
        return int(error.exit_code)
    pid = broker.pid
    _say(sys.stdout, f"running {broker.bootstrap} (process {pid}), log {broker.log_file}" if pid else "not running")
    return 0 if options.action == "stop" or pid else 1


def _say(stream: Any, line: str) -> None:
    stream.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
