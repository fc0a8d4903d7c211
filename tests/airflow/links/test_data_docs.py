"""The button Data Docs: to whoever serves the pages, by default to Sluice's own page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice_airflow.links.data_docs import DataDocsLink

pytestmark = pytest.mark.airflow

INDEX = "quality/demo/gx/uncommitted/data_docs/local_site/index.html"


@pytest.fixture
def button() -> Callable[[str | None], str]:
    def link(place: str | None) -> str:
        judgement = None if place is None else {"data_docs": place}
        ti = SimpleNamespace(xcom_pull=lambda **_: judgement)
        return DataDocsLink().get_link(SimpleNamespace(task_id="validate"), ti_key=ti)

    return link


def test_where_nobody_else_serves_them_the_page_does(button: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_DATA_DOCS_URL", raising=False)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://air.example/af")
    assert button(str(home / INDEX)) == "https://air.example/af/sluice/data-docs/demo/index.html"
    elsewhere = ("", None, "/elsewhere/index.html", str(home / "quality" / "demo" / "index.html"))
    assert [button(place) for place in elsewhere] == ["", "", "", ""]


@pytest.mark.parametrize("base", ["https://docs.example/gx", "https://docs.example/gx/", " https://docs.example/gx"])
def test_where_the_folder_is_served_the_link_opens_the_page(
    button: Any, home: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.setenv("SLUICE_DATA_DOCS_URL", base)
    assert button(str(home / INDEX)) == f"https://docs.example/gx/{INDEX.removeprefix('quality/')}"
    assert button("/elsewhere/index.html") == "", "not in the folder that is served"
    assert button(None) == ""
    assert button("https://other.example/x") == "https://other.example/x"


def test_what_is_no_address_counts_as_not_given(button: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DATA_DOCS_URL", "/srv/docs")
    assert button(str(home / INDEX)).endswith("/sluice/data-docs/demo/index.html")
