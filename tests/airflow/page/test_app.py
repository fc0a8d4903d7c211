"""Each address of the page: its answer, and who may read it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import delete
from tests.fixtures.ledgers import attempt
from tests.fixtures.showcase import LOSS

from sluice.ledger import Ledger
from sluice.ledger.events import Judged
from sluice.run.decision import accept
from sluice_airflow.page import queries
from sluice_airflow.page.app import app

pytestmark = pytest.mark.airflow

Server = Callable[[str | None], TestClient]
OF_A_PIPELINE = ("", "/runs", "/run?id=x", "/lag", "/losses", "/log")


@pytest.fixture
def rights(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let Airflow's auth manager hide one DAG, or a kind of access to all, as one with rights per DAG does."""
    from airflow.api_fastapi.app import get_auth_manager

    def hide(dag: str | None = None, entity: DagAccessEntity | None = None) -> None:
        manager = get_auth_manager()

        def allowed(*, method: str, user: Any, access_entity: Any = None, details: Any = None) -> bool:
            hidden = dag is not None and (details is None or details.id == dag)
            return not hidden and (entity is None or access_entity is not entity)

        monkeypatch.setattr(manager, "is_authorized_dag", allowed)

    return hide


def addresses() -> list[str]:
    made = {"dag_id": "orders", "path": "index.html"}
    return ["/sluice" + r.path.replace("{path:path}", "{path}").format(**made) for r in app.routes]


@pytest.fixture
def client(server: Server, past: Ledger) -> TestClient:
    """A reader, who may trigger no DAG."""
    return server("vic")


API = "/sluice/api/pipelines"


def test_page_asks_for_a_login_at_every_address_and_changes_nothing(server: Server, past: Ledger) -> None:
    assert all(isinstance(route, APIRoute) for route in app.routes), "no page of FastAPI's own, and nothing mounted"
    anonymous = server(None)
    assert {a: anonymous.get(a).status_code for a in addresses()} == dict.fromkeys(addresses(), 401)
    assert anonymous.get("/sluice/nothing/here").status_code == 404
    assert {m for route in app.routes if isinstance(route, APIRoute) for m in route.methods} == {"GET"}
    answer = anonymous.get("/sluice/?pipeline=orders", headers={"Accept": "text/html"})  # of a person in a browser
    assert answer.status_code == 303
    assert answer.headers["location"] == (
        "/api/v2/auth/login?next=http%3A%2F%2Flocalhost%3A8080%2Fsluice%2F%3Fpipeline%3Dorders"
    )


def test_page_hides_the_pipeline_of_a_dag_that_may_not_be_read(client: TestClient, rights: Any) -> None:
    rights("secret")
    assert [p["name"] for p in client.get(API).json()] == ["grouped", "idle", "orders"]
    hidden = [f"{API}/secret{more}" for more in OF_A_PIPELINE] + ["/sluice/data-docs/secret/index.html"]
    assert {a: client.get(a).status_code for a in hidden} == dict.fromkeys(hidden, 403)
    for path, code in (("orders", 200), ("orders?dag_id=secret", 200), ("secret?dag_id=orders", 403)):
        assert client.get(f"{API}/{path}").status_code == code, path


def test_page_shows_values_of_records_to_readers_of_task_logs_only(
    client: TestClient, past: Ledger, rights: Any
) -> None:
    rights(entity=DagAccessEntity.TASK_LOGS)
    run = past.runs.page("orders")[0].run_id
    assert client.get(f"{API}/orders").status_code == 200
    assert client.get(f"{API}/orders/run", params={"id": run}).status_code == 403
    assert client.get("/sluice/data-docs/orders/index.html").status_code == 403
    losses = client.get(f"{API}/orders/losses").json()["ranges"]
    assert [r["reason"] for r in losses] == ["the query failed: ValueError: «…»"]


@pytest.mark.parametrize(("user", "may"), [("ada", True), ("vic", False)])
def test_page_offers_the_redrive_button_to_those_who_may_trigger(
    server: Server, past: Ledger, user: str, may: bool
) -> None:
    body = server(user).get(f"{API}/orders").json()
    assert (body["maintenance"], body["may_redrive"]) == ("orders.maintenance", may)


def test_page_runs_only_its_own_scripts(client: TestClient) -> None:
    for path in ("", "static/page.js", "static/vendor/uplot/uPlot.esm.js"):
        answer = client.get(f"/sluice/{path}")
        assert answer.status_code == 200
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "http" not in client.get("/sluice/").text
    for path in ("../app.py", "..%2Fapp.py", "vendor", "%2e%2e/app.py"):
        assert client.get(f"/sluice/static/{path}").status_code == 404


def test_page_lists_pipelines_with_losses_verdicts_and_holds(client: TestClient, past: Ledger) -> None:
    found = {p["name"]: p for p in client.get(API).json()}
    assert {name: p["file"] for name, p in found.items()} == dict.fromkeys(
        ("orders", "secret", "idle", "grouped"), True
    )
    orders = found["orders"]
    assert (orders["lost"], orders["verdict"]["verdict"], len(orders["recent"])) == (17, "passed", 30)
    assert orders["recent"][1]["verdict"] == "warned"
    assert (found["idle"]["recent"], found["idle"]["verdict"]) == ([], None)
    assert {name: p["held"] for name, p in found.items() if "held" in p} == {
        "secret": past.runs.newest("secret")[0].run
    }


@pytest.mark.parametrize("on_failed", ["fail", "hold"])
def test_page_shows_a_failed_verdict_until_it_is_settled_though_later_runs_find_nothing(
    client: TestClient, past: Ledger, lived_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_failed: str
) -> None:
    home, pipelines = tmp_path / "home", tmp_path / "pipelines"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipelines))
    shutil.copytree(lived_in / "pipelines", pipelines)
    file = pipelines / "idle.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "quality": {"on_failed": on_failed}}))
    ledger = Ledger.open()
    for run, verdict in (("bad", "failed"), ("nothing", "empty")):
        with attempt(ledger, run, pipeline="idle", state="done") as lease:
            ledger.record(lease, Judged(verdict=verdict, judgement={}), run_id=run)

    def shown() -> tuple[str, str | None]:
        listed = {p["name"]: p for p in client.get(API).json()}["idle"]
        header = client.get(f"{API}/idle?newest=10").json()
        assert header["verdict"] == listed["verdict"]
        return listed["verdict"]["run_id"], listed.get("held")

    assert shown() == ("bad", "bad" if on_failed == "hold" else None)
    valid = file.read_text()
    file.write_text(f"<<<<<<< HEAD\n{valid}")
    (broken,) = (p for p in client.get(API).json() if p["name"] == "idle")
    assert (broken["file"], broken["verdict"]["run_id"], "idle.yaml" in broken["problem"]) == (False, "bad", True)
    assert client.get(f"{API}/idle/lag").json()["what"].startswith("the pipeline file is not valid")
    file.write_text(valid)
    accept(ledger, "idle", "bad", reason="known")
    assert shown() == ("nothing", None)


def test_page_shows_ten_thousand_runs_as_two_hundred_spans_and_a_list(client: TestClient, past: Ledger) -> None:
    body = client.get(f"{API}/orders?newest=1000000").json()
    assert (body["count"], len(body["spans"]), sum(s["runs"] for s in body["spans"])) == (10_000, 200, 10_000)
    for span in body["spans"]:
        parts = ("written", "filtered", "quarantined", "absent", "lost")
        assert span["planned"] == sum(span[p] for p in parts)
    assert body["page"] == [line.as_dict() for line in past.runs.page("orders", limit=25)]
    older = client.get(f"{API}/orders/runs?before={body['page'][-1]['sequence']}&limit=2").json()
    assert [r["sequence"] for r in older] == [9975, 9974]


def test_page_shows_how_a_run_was_judged_and_links_it_where_airflow_has_it(client: TestClient, past: Ledger) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType

    run = past.runs.page("orders")[1]

    def body() -> Any:
        return client.get(f"{API}/orders/run", params={"id": run.run_id}).json()

    found = body()
    assert (found["verdict"], found["planned"], found["state"]) == ("warned", run.counts.planned, "done")
    assert [r["column"] for r in found["results"] if not r["success"]] == ["amount"]
    assert not found["in_airflow"]
    with create_session() as session:
        session.add(DagRun(dag_id="orders", run_id=run.run_id, run_type=DagRunType.SCHEDULED))
    try:
        assert body()["in_airflow"]
    finally:
        with create_session() as session:
            session.execute(delete(DagRun).where(DagRun.run_id == run.run_id))


def test_page_shows_the_next_step_of_a_run_that_failed(
    client: TestClient, past: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    error = {"type": "SinkError", "exit_code": 30, "what": "full", "state": "safe", "next": "make room"}
    with attempt(Ledger.open(), "bad", pipeline="idle", state="failed", closed={"error": error}):
        pass
    shown = client.get(f"{API}/idle/run", params={"id": "bad"}).json()["error"]
    assert (shown["what"], shown["next_step"]) == ("full", "make room")


@pytest.mark.parametrize(("path", "what"), [("orders/run?id=none", "'none'"), ("none", "none")])
def test_page_answers_404_for_an_unknown_run_or_pipeline(client: TestClient, path: str, what: str) -> None:
    answer = client.get(f"{API}/{path}")
    assert answer.status_code == 404
    assert what in answer.json()["what"]


@pytest.mark.parametrize(
    "path",
    [
        "static/x%00", f"static/{'x' * 5000}", "data-docs/orders/x%00.html", f"data-docs/orders/{'x' * 5000}.html",
        f"api/pipelines/{'x' * 5000}", "api/pipelines/x%00", f"api/pipelines/orders/runs?before={10**30}",
        f"api/pipelines/orders/run?id={'x' * 5000}",
    ],
)  # fmt: skip
def test_page_answers_an_address_that_nothing_can_have(client: TestClient, path: str) -> None:
    assert client.get(f"/sluice/{path}").status_code in (404, 422)


def test_page_shows_losses_and_quarantine_of_ledger_and_table(client: TestClient) -> None:
    body = client.get(f"{API}/orders/losses").json()
    assert (body["lost"], body["count"], len(body["ranges"])) == (17, 1, 1)
    assert body["ranges"][0]["reason"] == LOSS
    assert body["quarantine"] == [{"rule": "decode", "column": None, "records": 4}]
    assert client.get(f"{API}/grouped/losses").json()["quarantine"] == []


def test_page_shows_the_lag_of_a_silent_broker_as_unknown(client: TestClient) -> None:
    for name in ("orders", "grouped"):
        body = client.get(f"{API}/{name}/lag").json()
        assert (body["verdict"], body["lag"], body["error"]["exit_code"]) == ("UNKNOWN", None, 20)


def test_page_answers_503_while_another_reader_asks(client: TestClient) -> None:
    queries._answers._asking.add(("lag", "orders"))
    try:
        answer = client.get(f"{API}/orders/lag")
    finally:
        queries._answers._asking.clear()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert set(answer.json()) == {"what", "state", "next_step"}


def test_page_answers_503_when_the_ledger_does_not_answer(
    client: TestClient, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER_URL", "postgresql+psycopg2://nobody@127.0.0.1:1/none")
    answer = client.get(API)
    assert (answer.status_code, "database" in answer.json()["next_step"]) == (503, True)
