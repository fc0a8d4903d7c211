"""The button Data Docs: there where somebody serves the pages, and nowhere else."""

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


def test_a_folder_on_a_disk_is_no_link(button: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_DATA_DOCS_URL", raising=False)
    assert [button(place) for place in (str(home / INDEX), "", None)] == ["", "", ""]


@pytest.mark.parametrize("base", ["https://docs.example/gx", "https://docs.example/gx/", " https://docs.example/gx"])
def test_where_the_folder_is_served_the_link_opens_the_page(
    button: Any, home: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.setenv("SLUICE_DATA_DOCS_URL", base)
    assert button(str(home / INDEX)) == f"https://docs.example/gx/{INDEX.removeprefix('quality/')}"
    assert button("/elsewhere/index.html") == "", "not in the folder that is served"
    assert button(None) == ""
    assert button("https://other.example/x") == "https://other.example/x"


def test_what_is_no_address_is_no_link(button: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DATA_DOCS_URL", "/srv/docs")
    assert button(str(home / INDEX)) == ""
