"""Ledger databases: a SQLite file, and a PostgreSQL cluster of the suite's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server, up to the database's name."""
    initdb = str(BINARIES[-1]) if BINARIES else shutil.which("initdb")
    if not initdb:
        pytest.skip("no PostgreSQL server binaries here: apt-get install postgresql")
    binaries = Path(initdb).parent
    prefix: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="sluice-pg-"))  # pytest's own folders are closed to other users
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    make = [*prefix, initdb, "-D", data, "-A", "trust", "-U", "sluice", "--no-sync", "--no-locale", "-E", "UTF8"]
    subprocess.run(make, check=True, capture_output=True, cwd=folder)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    control = [*prefix, str(binaries / "pg_ctl"), "-D", str(data), "-w"]
    start = [*control, "-o", options, "-l", str(folder / "log"), "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        yield f"postgresql+psycopg2://sluice@127.0.0.1:{port}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty ledger database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/folder/ledger.db"
    server = request.getfixturevalue("postgres")
    name = f"l{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{server}/{name}"
