"""Airflow on SQLite waits for the lock beside another writer; who waits for a DAG waits for a busy API server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sluice.local.airflow import Airflow

PROGRAM = """\
import sys, threading, time
if sys.argv[2:]:
    sys.path.insert(0, sys.argv[2])
    import airflow_local_settings
import sqlalchemy as sa
from sqlalchemy.orm import Session

engine = sa.create_engine(f"sqlite:///{sys.argv[1]}?timeout=30")

@sa.event.listens_for(engine, "connect")
def wal(connection, _):
    connection.execute("PRAGMA journal_mode=WAL")

meta = sa.MetaData()
table = sa.Table("runs", meta, sa.Column("id", sa.Integer, primary_key=True), sa.Column("who", sa.String))
meta.create_all(engine)
done = threading.Event()

def scheduler():
    while not done.is_set():
        with engine.begin() as connection:
            connection.execute(table.insert().values(who="scheduler"))
        time.sleep(0.002)

other = threading.Thread(target=scheduler)
other.start()
try:
    for number in range(10):
        with Session(engine) as session:
            for _ in range(30):
                with session.begin_nested():
                    session.execute(sa.select(sa.func.count()).select_from(table)).scalar()
                    time.sleep(0.003)  # the scheduler commits
                    session.execute(table.insert().values(who=f"backfill {number}"))
            session.commit()
finally:
    done.set()
    other.join()
with engine.connect() as connection:
    print(connection.execute(sa.text("SELECT count(*) FROM runs WHERE who LIKE 'backfill%'")).scalar())
"""


def test_a_backfill_is_created_beside_a_scheduler(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path / "airflow")
    airflow.write_local_settings()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))

    without = run(str(tmp_path / "without.db"))
    assert "database is locked" in without.stderr, "SQLite or SQLAlchemy have become better: remove the cure"
    cured = run(str(tmp_path / "cured.db"), str(airflow.folder / "config"))
    assert (cured.stdout.strip(), cured.stderr) == ("300", "")


def test_who_waits_for_a_dag_asks_again_when_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow, asked = Airflow(tmp_path / "airflow"), []

    def call(_method: str, path: str) -> None:
        asked.append(path)
        if len(asked) == 1:
            raise httpx.ReadTimeout("timed out")

    monkeypatch.setattr(airflow, "call", call)
    airflow.wait_for_dag("orders")
    assert asked == ["/dags/orders/details"] * 2
