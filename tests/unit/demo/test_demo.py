"""The demos and their Airflow: next steps, missing servers, rows that differ, and SQLite beside another writer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import httpx
import pytest

from sluice.errors import ConfigError, SluiceError
from sluice.local.servers import Postgres, Redis
from sluice.pipeline import load, pipelines_folder
from sluice_demo import sources
from sluice_demo.airflow import Airflow
from sluice_demo.demo import Demo


def test_demo_prints_a_command_that_makes_a_pipeline_on_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("flights_monthly").schedule.cron == "0 0 1 * *"  # type: ignore[union-attr]
    for file in ("pipelines/flights.yaml", "expectations/flights.json"):
        (tmp_path / file).parent.mkdir()
        shutil.copy(pipelines_folder().parent / file, tmp_path / file)
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
    steps = Demo().next_steps()
    (command,) = re.findall(r"^ +(sed .*\\\n.*)$", steps, re.M)
    subprocess.run(["bash", "-c", command], check=True)
    made, source = load("flights_on_lag"), load("flights")
    assert (made.schedule, made.sink.config.location) == ("on_lag", "flights_on_lag")
    changed = {"name", "schedule", "sink"}
    assert made.model_dump(exclude=changed) == source.model_dump(exclude=changed)
    assert "airflow dags unpause flights_on_lag" in steps
    assert "airflow backfill create --dag-id flights_monthly --from-date 2013-03-01" in steps


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    return tmp_path


def test_chain_names_missing_servers_with_their_packages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for server in (Postgres, Redis):
        monkeypatch.setattr(server, "program", lambda _: None)
    with pytest.raises(ConfigError, match="PostgreSQL and Redis") as refused:
        sources.SourcesDemo().up()
    assert "apt-get install postgresql redis-server" in str(refused.value)
    assert list(home.iterdir()) == []
    assert sources.main(["down"]) == 0


def test_airflow_of_the_demo_is_asked_again_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow(tmp_path / "airflow")
    airflow._token = "t"
    monkeypatch.setattr(Airflow, "login", ("me", "pw"))
    answer = mock.Mock(status_code=200, content=b"")
    request = mock.Mock(side_effect=[httpx.ReadTimeout("timed out"), answer, httpx.ReadTimeout("timed out")])
    monkeypatch.setattr(httpx, "request", request)
    airflow.wait_for_dag("orders")
    assert request.call_count == 2
    with pytest.raises(SluiceError, match="/dags/orders"):  # and not a traceback at the end of `make demo`
        airflow.call("GET", "/dags/orders")


def test_chain_refuses_doubled_and_missing_rows(home: Path) -> None:
    demo = sources.SourcesDemo()
    demo._compare("it", Counter({(1,): 1}), Counter({(1,): 1}))
    for out in ({(1,): 2}, {}, {(2,): 1}):
        with pytest.raises(SluiceError, match="it"):
            demo._compare("it", Counter(out), Counter({(1,): 1}))


PROGRAM = """\
import sys, threading
if sys.argv[2:]:
    sys.path.insert(0, sys.argv[2])
    import airflow_local_settings
import sqlalchemy as sa
from sqlalchemy.orm import Session

engine = sa.create_engine(f"sqlite:///{sys.argv[1]}?timeout=30")
INSERT, COUNT = sa.text("INSERT INTO runs VALUES (1)"), sa.text("SELECT count(*) FROM runs")

def scheduler():
    with engine.begin() as connection:
        connection.execute(INSERT)

with engine.begin() as connection:
    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    connection.exec_driver_sql("CREATE TABLE runs (id INTEGER)")
other = threading.Thread(target=scheduler, daemon=True)
with Session(engine) as session:
    with session.begin_nested():
        session.execute(COUNT).scalar()
        other.start()
        other.join(1)  # it commits, or waits for the lock
        session.execute(INSERT)
    session.commit()
other.join()
with engine.connect() as connection:
    print(connection.execute(COUNT).scalar())
"""


def test_airflow_on_sqlite_creates_a_backfill_beside_a_scheduler(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path / "airflow")
    airflow.write_local_settings()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))

    without = run(str(tmp_path / "without.db"))
    assert "database is locked" in without.stderr, "SQLite or SQLAlchemy wait by themselves: remove the setting"
    fixed = run(str(tmp_path / "fixed.db"), str(airflow.folder / "config"))
    assert (fixed.stdout.strip(), fixed.stderr) == ("2", "")
