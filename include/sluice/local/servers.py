"""A PostgreSQL and a Redis server from Debian's programs, each in a folder of its own, for the second demo."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from sluice.errors import ConfigError, SluiceError
from sluice.local.machine import free_port, is_listening

__all__ = ["Postgres", "Redis", "Server", "refuse_missing"]

_HOST = "127.0.0.1"
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))


class Server(Protocol):
    """A server that outlives the process that started it; another object with the same folder means the same one."""

    name: str
    package: str
    """Debian's package."""

    def program(self) -> Path | None:
        """Return what is started; None if it is not installed."""

    def start(self) -> None:
        """Start it, unless it is running, and return when it accepts connections."""

    def stop(self) -> bool:
        """Stop it; return whether it was running."""

    def remove(self) -> None:
        """Stop it, and remove its folder and data."""

    def connection(self) -> dict[str, Any]:
        """Return Airflow's connection to it."""


def refuse_missing(*servers: Server) -> None:
    """Refuse to begin if the program of a server is not installed.

    Raises
    ------
    ConfigError
        With the Debian packages of all that are missing.
    """
    missing = [server for server in servers if server.program() is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(server.name for server in missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            state="nothing was started",
            next_step=f"apt-get install {' '.join(server.package for server in missing)}",
        )


class _Local:
    """Port and password of a server, kept in its folder."""

    name = package = ""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder).absolute()
        self.log_file = self.folder / "log"
        self._file = self.folder / "server.json"

    @property
    def known(self) -> dict[str, Any]:
        """What was noted when it was made; empty before that."""
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def _note(self, **values: Any) -> dict[str, Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        found = self.known | values
        fresh = self._file.with_suffix(".tmp")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(found))
        fresh.replace(self._file)
        return found

    def _await(self, port: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 30
        while not is_listening(_HOST, port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise self.failure()
            time.sleep(0.05)

    def failure(self) -> SluiceError:
        """Return the error that says why it did not start."""
        said = self.log_file.read_text(errors="replace").splitlines()[-10:] if self.log_file.exists() else []
        return SluiceError(
            "\n    ".join([f"{self.name} did not start; the end of its log:", *said]),
            state="nothing was read or written",
            next_step=f"read {self.log_file}",
        )


class Redis(_Local):
    """A Redis server that keeps its data in files."""

    name = "Redis"
    package = "redis-server"

    def program(self) -> Path | None:
        """Return ``redis-server``; None if it is not installed."""
        found = shutil.which("redis-server", path=_PATH)
        return Path(found) if found else None

    def client(self) -> Any:
        """Return a client."""
        import redis

        known = self.known
        return redis.Redis(host=_HOST, port=known["port"], password=known["password"], socket_timeout=30)

    @property
    def running(self) -> bool:
        """Whether a server answers that has this folder's data."""
        import redis

        if "port" not in self.known:
            return False
        try:
            found = self.client().config_get("dir")
        except redis.RedisError:
            return False
        return bool(found.get("dir", found.get(b"dir")) in (str(self.folder), str(self.folder).encode()))

    def start(self) -> None:
        """Start it, unless it is running, and return when it accepts connections.

        Raises
        ------
        ConfigError
            If it is not installed.
        SluiceError
            If it does not start.
        """
        if self.running:
            return
        refuse_missing(self)
        known = self._note(
            port=free_port(_HOST, int(self.known.get("port", 0))),
            password=self.known.get("password") or secrets.token_urlsafe(16),
        )
        settings = {
            "bind": _HOST, "port": known["port"], "dir": self.folder, "requirepass": known["password"],
            "appendonly": "yes", "save": '""',
        }  # fmt: skip
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        with self.log_file.open("ab") as log:  # settings by stdin: the password is in no list of processes
            process = subprocess.Popen(
                [str(self.program()), "-"], stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
            assert process.stdin is not None
            process.stdin.write(text.encode())
            process.stdin.close()
        self._await(known["port"], process)

    def stop(self) -> bool:
        """Stop it; return whether it was running."""
        was = self.running
        if was:
            self.client().shutdown()
        return was

    def remove(self) -> None:
        """Stop it, and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connection(self) -> dict[str, Any]:
        """Return Airflow's connection to it."""
        known = self.known
        return {"conn_type": "redis", "host": _HOST, "port": known["port"], "password": known["password"]}


class Postgres(_Local):
    """A PostgreSQL server with one database, ``sluice``.

    PostgreSQL refuses to run as root. Started by root, it runs as the user ``postgres``, and its data is in a folder
    of that user's, which :meth:`remove` removes.
    """

    name = "PostgreSQL"
    package = "postgresql"

    def program(self) -> Path | None:
        """Return ``pg_ctl`` of the newest version that is installed; None if there is none with ``initdb``."""
        debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
        on_path = shutil.which("initdb", path=_PATH)
        found = debian[-1] if debian else Path(on_path).resolve() if on_path else None
        return found.with_name("pg_ctl") if found else None

    @property
    def running(self) -> bool:
        """Whether the server of this folder's data is running."""
        return "data" in self.known and self.program() is not None and self._control("status").returncode == 0

    def start(self) -> None:
        """Start it, unless it is running, and return when it accepts connections.

        Raises
        ------
        ConfigError
            If it is not installed.
        SluiceError
            If it does not start.
        """
        if self.running:
            return
        refuse_missing(self)
        if "made" not in self.known:
            self._make()
        port = free_port(_HOST, int(self.known.get("port", 0)))
        options = f"-p {port} -c listen_addresses={_HOST} -c unix_socket_directories="
        self._note(port=port)
        if self._control("-w", "-o", options, "-l", f"{self.known['data']}.log", "start").returncode:
            raise self.failure()

    def stop(self) -> bool:
        """Stop it; return whether it was running."""
        was = self.running
        if was:
            self._control("-w", "-m", "fast", "stop")
        return was

    def remove(self) -> None:
        """Stop it, and remove its folder and data."""
        self.stop()
        home = self.known.get("home")
        if home:
            shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def connection(self) -> dict[str, Any]:
        """Return Airflow's connection to it."""
        known = self.known
        where = {"host": _HOST, "port": known["port"], "schema": "postgres"}
        return {"conn_type": "postgres", "login": "sluice", "password": known["password"], **where}

    def _make(self) -> None:
        if self.known.get("home"):  # of an attempt that died
            shutil.rmtree(self.known["home"], ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix="sluice-postgres-")) if self._as else self.folder / "server"
        home.mkdir(exist_ok=True)
        known = self._note(home=str(home), data=str(home / "data"), password=secrets.token_urlsafe(16))
        password = home / "password"
        password.touch(mode=0o600)
        password.write_text(known["password"])
        if self._as:
            for path in (home, password):
                shutil.chown(path, "postgres")
        who = ["-U", "sluice", "-A", "scram-sha-256", "--pwfile", str(password)]
        initdb = str(self._pg_ctl.with_name("initdb"))
        command = [*self._as, initdb, "-D", known["data"], *who, "--no-locale", "-E", "UTF8", "--no-sync"]
        with self.log_file.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, cwd=home, check=False)
        password.unlink()
        if done.returncode:
            raise self.failure()
        self._note(made=True)

    @property
    def _pg_ctl(self) -> Path:
        found = self.program()
        assert found is not None
        return found

    @property
    def _as(self) -> list[str]:
        return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    def _control(self, *what: str) -> subprocess.CompletedProcess[bytes]:
        command = [*self._as, str(self._pg_ctl), "-D", self.known["data"], *what]
        with self.log_file.open("ab") as log:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.known["home"], check=False
            )
