"""Each address of the page: what it says, and to whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import delete

from sluice.ledger import Ledger
from sluice_airflow.page import readings
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


def test_every_address_asks_for_a_login(server: Server, past: Ledger) -> None:
    assert all(isinstance(route, APIRoute) for route in app.routes), "no page of FastAPI's own, and nothing mounted"
    anonymous = server(None)
    assert {a: anonymous.get(a).status_code for a in addresses()} == dict.fromkeys(addresses(), 401)
    assert anonymous.get("/sluice/nothing/here").status_code == 404


def test_a_person_who_is_not_logged_in_is_led_to_the_login_and_back(server: Server) -> None:
    answer = server(None).get("/sluice/?pipeline=orders", headers={"Accept": "text/html"})
    assert answer.status_code == 303
    assert answer.headers["location"] == (
        "/api/v2/auth/login?next=http%3A%2F%2Flocalhost%3A8080%2Fsluice%2F%3Fpipeline%3Dorders"
    )


def test_nothing_can_be_changed_here() -> None:
    assert {m for route in app.routes if isinstance(route, APIRoute) for m in route.methods} == {"GET"}


def test_the_pipelines_at_a_glance(server: Server, past: Ledger) -> None:
    found = {p["name"]: p for p in server("vic").get("/sluice/api/pipelines").json()}
    assert set(found) == {"orders", "secret", "idle", "grouped"}
    orders = found["orders"]
    assert (orders["lost"], orders["verdict"]["verdict"], len(orders["recent"])) == (17, "passed", 30)
    assert orders["recent"][1]["verdict"] == "warned"
    assert (found["idle"]["recent"], found["idle"]["verdict"]) == ([], None)
    assert {name: p["held"] for name, p in found.items() if "held" in p} == {"secret": past.runs("secret")[0].run}


def test_ten_thousand_runs_are_two_hundred_spans_and_a_page(server: Server, past: Ledger) -> None:
    client = server("vic")
    body = client.get("/sluice/api/pipelines/orders?newest=1000000").json()
    assert (body["count"], len(body["spans"]), sum(s["runs"] for s in body["spans"])) == (10_000, 200, 10_000)
    for span in body["spans"]:
        parts = ("written", "filtered", "quarantined", "absent", "lost")
        assert span["planned"] == sum(span[p] for p in parts)
    assert body["page"] == [line.as_dict() for line in past.page("orders", limit=25)]
    older = client.get(f"/sluice/api/pipelines/orders/runs?before={body['page'][-1]['sequence']}&limit=2").json()
    assert [r["sequence"] for r in older] == [9975, 9974]


def test_a_run_tells_how_it_was_judged(server: Server, past: Ledger) -> None:
    run = past.page("orders")[1]
    body = server("vic").get("/sluice/api/pipelines/orders/run", params={"id": run.run_id}).json()
    assert (body["verdict"], body["planned"], body["state"]) == ("warned", run.counts.planned, "done")
    assert [r["column"] for r in body["results"] if not r["success"]] == ["amount"]
    gone = server("vic").get("/sluice/api/pipelines/orders/run?id=none")
    assert (gone.status_code, gone.json()["what"]) == (404, "the ledger has no run 'none' of 'orders'")


def test_losses_and_quarantine_are_those_of_ledger_and_table(server: Server, past: Ledger) -> None:
    body = server("vic").get("/sluice/api/pipelines/orders/losses").json()
    assert (body["lost"], body["count"], len(body["ranges"])) == (17, 1, 1)
    assert body["quarantine"] == [{"rule": "decode", "column": None, "records": 4}]


def test_a_silent_broker_is_an_answer_and_not_zero(server: Server, past: Ledger) -> None:
    body = server("vic").get("/sluice/api/pipelines/orders/lag").json()
    assert (body["verdict"], body["lag"], body["error"]["exit_code"]) == ("UNKNOWN", None, 20)


def test_a_pipeline_in_a_folder_below_is_as_well_known_as_the_others(server: Server, past: Ledger) -> None:
    client = server("vic")
    found = {p["name"]: p["file"] for p in client.get("/sluice/api/pipelines").json()}
    assert found == dict.fromkeys(("orders", "secret", "idle", "grouped"), True)
    assert client.get("/sluice/api/pipelines/grouped/lag").json()["verdict"] == "UNKNOWN"
    assert client.get("/sluice/api/pipelines/grouped/losses").json()["quarantine"] == []


def test_what_somebody_else_asks_for_is_told_as_such(server: Server, past: Ledger) -> None:
    readings._answers._asking.add(("lag", "orders"))
    try:
        answer = server("vic").get("/sluice/api/pipelines/orders/lag")
    finally:
        readings._answers._asking.clear()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json() == {
        "what": "the lag is being asked for",
        "state": "nothing is known of it yet",
        "next_step": "ask again in some seconds",
    }


def test_a_run_that_airflow_does_not_have_has_no_link_there(server: Server, past: Ledger) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType

    run = past.page("orders")[0].run_id
    client = server("vic")

    def linked() -> bool:
        return bool(client.get("/sluice/api/pipelines/orders/run", params={"id": run}).json()["in_airflow"])

    assert not linked()
    with create_session() as session:
        session.add(DagRun(dag_id="orders", run_id=run, run_type=DagRunType.SCHEDULED))
    try:
        assert linked()
    finally:
        with create_session() as session:
            session.execute(delete(DagRun).where(DagRun.run_id == run))


def test_a_pipeline_that_is_unknown_is_said_to_be(server: Server, past: Ledger) -> None:
    answer = server("vic").get("/sluice/api/pipelines/none")
    assert (answer.status_code, answer.json()["next_step"]) == (404, "choose one of: sluice status")


@pytest.mark.parametrize(("user", "may"), [("ada", True), ("vic", False)])
def test_who_may_not_trigger_is_offered_no_button(server: Server, past: Ledger, user: str, may: bool) -> None:
    body = server(user).get("/sluice/api/pipelines/orders").json()
    assert (body["maintenance"], body["may_redrive"]) == ("orders.maintenance", may)


def test_a_dag_that_may_not_be_read_hides_its_pipeline(server: Server, past: Ledger, rights: Any) -> None:
    client = server("vic")
    rights("secret")
    assert [p["name"] for p in client.get("/sluice/api/pipelines").json()] == ["grouped", "idle", "orders"]
    hidden = [f"/sluice/api/pipelines/secret{more}" for more in OF_A_PIPELINE] + ["/sluice/data-docs/secret/index.html"]
    assert {a: client.get(a).status_code for a in hidden} == dict.fromkeys(hidden, 403)
    assert client.get("/sluice/api/pipelines/orders").status_code == 200
    assert client.get("/sluice/api/pipelines/orders?dag_id=secret").status_code == 200
    assert client.get("/sluice/api/pipelines/secret?dag_id=orders").status_code == 403


def test_values_of_records_are_for_those_who_may_read_task_logs(server: Server, past: Ledger, rights: Any) -> None:
    client = server("vic")
    rights(entity=DagAccessEntity.TASK_LOGS)
    assert client.get("/sluice/api/pipelines/orders").status_code == 200
    run = past.page("orders")[0].run_id
    assert client.get("/sluice/api/pipelines/orders/run", params={"id": run}).status_code == 403
    assert client.get("/sluice/data-docs/orders/index.html").status_code == 403


def test_the_page_runs_only_its_own_scripts(server: Server) -> None:
    client = server("vic")
    for path in ("", "static/page.js", "static/vendor/uplot/uPlot.esm.js"):
        answer = client.get(f"/sluice/{path}")
        assert answer.status_code == 200
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "http" not in client.get("/sluice/").text
    for path in ("../app.py", "..%2Fapp.py", "vendor", "%2e%2e/app.py"):
        assert client.get(f"/sluice/static/{path}").status_code == 404


def test_the_ledger_that_does_not_answer_is_told_with_the_next_step(
    server: Server, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER_URL", "postgresql+psycopg2://nobody@127.0.0.1:1/none")
    answer = server("vic").get("/sluice/api/pipelines")
    assert (answer.status_code, "start the database" in answer.json()["next_step"]) == (503, True)
