"""What Airflow loads of Sluice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from tests.airflow.page.conftest import server  # noqa: F401

pytestmark = pytest.mark.airflow


def test_airflow_finds_the_plugin_and_shows_it_in_the_menu(server: Callable[[str | None], TestClient]) -> None:  # noqa: F811
    client = server("ada")
    found = {p["name"]: p for p in client.get("/api/v2/plugins").json()["plugins"]}["sluice"]
    assert [(a["url_prefix"], a["name"]) for a in found["fastapi_apps"]] == [("/sluice", "Sluice")]
    (view,) = found["external_views"]
    assert (view["name"], view["href"], view["url_route"]) == ("Sluice", "sluice/", "sluice")
    assert (view["destination"], view["nav_top_level"]) == ("nav", True)
    assert client.get(f"/{view['href']}").status_code == 200
    assert client.get(f"/{view['icon']}").headers["content-type"].startswith("image/svg+xml")
    assert client.get("/api/v2/plugins/importErrors").json()["import_errors"] == []


def test_components_that_serve_no_page_do_not_load_it() -> None:
    look = "import sys, sluice_airflow.plugin; print('sluice_airflow.page.app' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split()[-1] == "False"
