"""A PostgreSQL server of one's own, with its defaults of durability."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.local.machine import free_port

__all__ = ["binaries", "server"]


def binaries() -> Path | None:
    """Return the folder of the newest server's programs; None when there is none here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """Run a server for as long as the block lasts; yields the URL of an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-pg-"))
    prefix: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    data, port = folder / "data", free_port("127.0.0.1")
    make = ["-A", "trust", "-U", "sluice", "--no-locale", "-E", "UTF8"]
    subprocess.run(
        [*prefix, str(programs / "initdb"), "-D", str(data), *make], check=True, capture_output=True, cwd=folder
    )
    control = [*prefix, str(programs / "pg_ctl"), "-D", str(data), "-w"]
    settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    start = [*control, "-o", settings, "-l", str(folder / "log"), "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        yield f"postgresql+psycopg2://sluice@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        shutil.rmtree(folder)
