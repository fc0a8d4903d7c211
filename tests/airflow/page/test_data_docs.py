"""Data Docs behind the login: only they, and nothing in them runs or loads from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.fixtures.showcase import data_docs

from sluice_airflow.page.data_docs import POLICY

pytestmark = pytest.mark.airflow

Server = Callable[[str | None], TestClient]
LINK = "validations/orders-slice/scheduled__1/20261122T193103.137570Z/orders.html"


@pytest.fixture
def site(home: Path) -> Path:
    """The Data Docs of ``orders``, with secrets around them."""
    page = data_docs(home, "orders", "scheduled__1", "<p>three &lt; four</p>")
    (home / "ledger.txt").write_text("secret")
    (home / "quality" / "other.html").write_text("secret")
    return page.parents[4]


def test_data_docs_index_lists_the_runs_and_needs_no_script(server: Server, site: Path) -> None:
    answer = server("vic").get("/sluice/data-docs/orders/index.html")
    assert answer.status_code == 200
    assert "<script" not in answer.text
    assert f'<a href="{LINK}">scheduled__1</a>' in answer.text
    assert "2026-11-22 19:31:03 UTC" in answer.text
    assert server("vic").get("/sluice/data-docs/orders/static/style.css").text == "h1 { color: teal }"


def test_data_docs_page_loads_nothing_from_another_host_and_runs_nothing(server: Server, site: Path) -> None:
    answer = server("vic").get(f"/sluice/data-docs/orders/{LINK}")
    assert "<h1>Judged</h1><p>three &lt; four</p>" in answer.text
    assert not [word for word in ("<script", "example/", "alert", "<img") if word in answer.text]
    assert 'href="/sluice/static/vendor/bootstrap/bootstrap.min.css"' in answer.text
    assert answer.headers["content-security-policy"] == POLICY
    assert "script-src" not in POLICY
    assert "default-src 'none'" in POLICY
    assert POLICY.startswith("sandbox allow-same-origin;"), "no script, no form, no new window"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "orders/../../great_expectations.yml",
        "orders/..%2f..%2f..%2fgreat_expectations.yml",
        "orders/%2e%2e/%2e%2e/%2e%2e/great_expectations.yml",
        "orders/..%2f..%2f..%2f..%2f..%2fother.html",
        "orders//etc/hostname",
        "orders/static",
        "%2e%2e/ledger.txt",
        "..%2forders/index.html",
        "none/index.html",
    ],
)
def test_data_docs_path_leads_out_of_no_page(server: Server, site: Path, path: str) -> None:
    answer = server("vic").get(f"/sluice/data-docs/{path}")
    assert answer.status_code in (403, 404)
    assert "secret" not in answer.text


def test_data_docs_follow_no_symbolic_link(server: Server, site: Path, home: Path) -> None:
    (site / "leak.html").symlink_to(home / "ledger.txt")
    (home / "quality" / "linked").symlink_to(home)
    client = server("vic")
    assert client.get("/sluice/data-docs/orders/leak.html").status_code == 404
    assert client.get("/sluice/data-docs/linked/index.html").status_code == 404
