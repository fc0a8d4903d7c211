"""A real API server app with two users, in this process; its DAGs are rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.fixtures.showcase import PIPELINE, Past, data_docs, fill, quarantine

from sluice.ledger import Ledger

USERS = {"ada": "admin", "vic": "viewer"}


@pytest.fixture(scope="module")
def server(airflow_db: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str | None], TestClient]]:
    """Make a client that is logged in as a user; None: that is not logged in."""
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    passwords = tmp_path_factory.mktemp("auth") / "passwords.json"
    passwords.write_text(json.dumps({name: f"{name}-password" for name in USERS}))
    dags = ["orders", "orders.maintenance", "secret", "idle"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", ",".join(f"{n}:{r}" for n, r in USERS.items()))
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
        with create_session() as session:
            session.merge(DagBundleModel(name="page"))
            session.flush()
            for dag in dags:
                session.merge(DagModel(dag_id=dag, bundle_name="page", fileloc="x", is_stale=False))
        purge_cached_app()
        app = create_app()

        def client(user: str | None) -> TestClient:
            made = TestClient(app, base_url="http://localhost:8080", follow_redirects=False)
            if user:
                body = {"username": user, "password": f"{user}-password"}
                token = made.post("/auth/token", json=body).json()["access_token"]
                made.headers["Authorization"] = f"Bearer {token}"
            return made

        yield client
        purge_cached_app()
        with create_session() as session:
            for dag in dags:
                session.delete(session.get(DagModel, dag))


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home and pipeline files: pipelines that ran, one of them ten thousand times, one in a folder below
    and without a DAG of its own, and one that did not run."""
    folder = tmp_path_factory.mktemp("lived-in")
    home, pipelines = folder / "home", folder / "pipelines"
    pipelines.mkdir()
    (pipelines / "finance").mkdir()
    for name in ("orders", "secret", "idle", "finance/grouped"):
        (pipelines / f"{name}.yaml").write_text(PIPELINE.format(name=Path(name).name, recovery="replay"))
    with (pipelines / "secret.yaml").open("a") as file:
        file.write("\nquality: {on_failed: hold}\n")
    ledger = Ledger.open(f"sqlite:///{home}/ledger.db")
    fill(ledger, "orders", Past(10_000, partitions=1, losses={3: 17}, verdicts={1: "warned"}))
    fill(ledger, "secret", Past(3, verdicts={0: "failed"}))
    fill(ledger, "grouped", Past(2))
    quarantine(home / "orders_quarantine", [("decode", None, 4)])
    data_docs(home, "orders", "scheduled__1")
    return folder


@pytest.fixture
def past(lived_in: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """That home as ``SLUICE_HOME``, and a page that has not asked anything yet; nothing there is changed."""
    from sluice_airflow.page import queries

    monkeypatch.setenv("SLUICE_HOME", str(lived_in / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(lived_in / "pipelines"))
    monkeypatch.setattr(queries, "PATIENCE", 0.5)
    queries._answers.clear()
    return Ledger.open()
