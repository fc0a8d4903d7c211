"""The command ``sluice`` reads what Airflow keeps: a real metadata database with a Fernet key, a secrets backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from sluice.connections import look_up
from sluice_airflow.connection_store import STORE

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

SECRET = "hunter2-of-the-database"

PIPELINE = """\
pipeline: {name}
source: {{kafka: {{connection: kafka_{name}, topics: [t]}}}}
decode: {{text: {{}}}}
sink: {{delta: {{path: {name}}}}}
"""


def kafka(port: int) -> str:
    extra = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SASL_PLAINTEXT",
             "sasl.mechanism": "PLAIN", "sasl.username": "reader", "sasl.password": SECRET}  # fmt: skip
    return json.dumps({"conn_type": "kafka", "extra": extra})


def run(command: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [str(Path(sys.executable).with_name(command)), *arguments]
    return subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, check=False, timeout=300)


def errors(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the error of each pipeline by ``sluice lag --json``, whose stdout has nothing else."""
    return {found["pipeline"]: found["error"]["what"] for found in json.loads(done.stdout)}


def test_command_asks_airflows_database_and_backend_and_errors_say_where(tmp_path: Path) -> None:
    for name in ("database", "backend", "nowhere"):
        (tmp_path / f"{name}.yaml").write_text(PIPELINE.format(name=name))
    vault = tmp_path / "vault.json"
    vault.write_text(json.dumps({"kafka_backend": json.loads(kafka(2))}))
    env = {
        "SLUICE_PIPELINES": str(tmp_path),
        "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(vault)}),
    }
    given = tmp_path / "given.json"  # Airflow writes a command's arguments, with their secrets, into its audit log
    given.write_text(json.dumps({"kafka_database": json.loads(kafka(1))}))
    added = run("airflow", "connections", "import", str(given), **env)
    assert added.returncode == 0, added.stderr
    # with its write-ahead log, as long as another connection is open
    database = b"".join(file.read_bytes() for file in Path(os.environ["AIRFLOW_HOME"]).glob("airflow.db*"))
    assert (b"kafka_database" in database, SECRET.encode() in database) == (True, False), "it is encrypted"

    done = run("sluice", "lag", "--json", **env)
    found = errors(done)
    assert "127.0.0.1:1" in found["database"], "the broker of the database's connection does not answer"
    assert "127.0.0.1:2" in found["backend"]
    (where,) = (line for line in done.stderr.splitlines() if line.startswith("connection 'kafka_database'"))
    for place in (f"{os.environ['AIRFLOW_HOME']}/airflow.cfg", "AIRFLOW_CONN_KAFKA_DATABASE"):
        assert place in where
    for place in ("AIRFLOW_CONN_KAFKA_NOWHERE", "airflow.cfg", "LocalFilesystemBackend", "MetastoreBackend"):
        assert place in found["nowhere"]
    assert SECRET not in done.stdout + done.stderr

    other = run("sluice", "lag", "database", **env | {"AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode()})
    assert "AIRFLOW__CORE__FERNET_KEY" in other.stdout + other.stderr
    assert SECRET not in other.stdout + other.stderr
    assert "Traceback" not in other.stderr
    (tmp_path / "old.db").write_bytes(b"no database")
    broken = run("sluice", "lag", "nowhere", "--json",
                 **env | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/old.db"})  # fmt: skip
    assert "MetastoreBackend (which failed: DatabaseError)" in errors(broken)["nowhere"]


def test_command_does_not_import_airflow_where_a_variable_has_the_connection(
    pipeline_file: Any,
) -> None:
    program = """\
import sys
from sluice.cli.app import app
for arguments in (["status"], ["lag", sys.argv[1]]):
    app(arguments, standalone_mode=False)
    assert "airflow" not in sys.modules, arguments
"""
    argv = [sys.executable, "-c", program, str(pipeline_file("p"))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_connection_of_a_variable_comes_before_airflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(STORE), "get", lambda *_: pytest.fail("Airflow was asked"))
    found = look_up("kafka_default")
    assert found.extra["bootstrap.servers"] == "broker:9092"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for an Airflow, of which no variable says anything."""
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "airflow"
    folder.mkdir()
    return folder


def test_airflow_home_that_is_not_configured_is_not_made(folder: Path) -> None:
    assert STORE.get("kafka_default") is None
    assert "AIRFLOW_HOME" in STORE.explain("kafka_default")
    assert list(folder.parent.rglob("airflow*")) == [folder]


@pytest.mark.parametrize("there", ["empty home", "no file", "empty file", "no file of airflow.cfg"])
def test_airflow_database_that_is_missing_is_named_and_not_made(
    there: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(folder))
    file = folder / ("airflow.db" if there == "empty home" else "other.db")
    if "cfg" in there:
        (folder / "airflow.cfg").write_text(f"[database]\nsql_alchemy_conn = sqlite:///{file}\n")
    elif there != "empty home":
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{file}")
    if there == "empty file":
        file.touch()
    before = sorted(folder.rglob("*"))
    assert STORE.get("kafka_nowhere") is None
    assert f"{file} is missing or empty" in STORE.explain("kafka_nowhere")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE__SQL_ALCHEMY_CONN_CMD", "cat /run/secrets/url"),
        ("DATABASE__SQL_ALCHEMY_CONN", "postgresql://db/airflow"),
        ("SECRETS__BACKEND", "a.vault.Backend"),
    ],
)
def test_airflow_database_that_only_airflow_can_find_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    from sluice_airflow.connection_store import _absent

    (folder / "airflow.cfg").write_text(f"[database]\nsql_alchemy_conn = sqlite:///{folder}/none.db\n")
    monkeypatch.setenv("AIRFLOW_HOME", str(folder))
    assert "none.db" in _absent()
    monkeypatch.setenv(f"AIRFLOW__{name}", value)
    assert _absent() == ""
