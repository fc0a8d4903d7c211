"""The buttons of tasks, and the addresses that they open, wherever Airflow is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice_airflow.links.data_docs import DataDocsLink
from sluice_airflow.links.page import PageLink
from sluice_airflow.operators.account import AccountOperator
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.reset import ResetOperator
from sluice_airflow.operators.retract import RetractOperator
from sluice_airflow.operators.validate import ValidateOperator
from sluice_airflow.page.links import data_docs_at, page_at

pytestmark = pytest.mark.airflow

INDEX = "quality/demo/gx/uncommitted/data_docs/local_site/index.html"


@pytest.mark.parametrize(("base", "path"), [("https://air.example", ""), ("https://air.example/af/", "/af"), ("", "")])
def test_page_link_opens_the_run_below_airflows_address(
    pipeline_file: Any, monkeypatch: pytest.MonkeyPatch, base: str, path: str
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    page, docs = f"{base.rstrip('/')}/plugin/sluice{path}/sluice/", f"{base.rstrip('/')}/sluice/"
    assert page_at("orders") == f"{page}?pipeline=orders"
    assert page_at("orders", "manual__1+2") == f"{page}?pipeline=orders&run=manual__1%2B2"
    assert data_docs_at("orders", "index.html") == f"{docs}data-docs/orders/index.html"
    operator = SimpleNamespace(pipeline=str(pipeline_file("demo")), run_id="manual__1")
    assert PageLink().get_link(operator, ti_key=None) == f"{page}?pipeline=demo&run=manual__1"
    assert PageLink().get_link(SimpleNamespace(pipeline="/none.yaml", run_id="r"), ti_key=None) == ""


def test_links_of_each_task_are_its_buttons() -> None:
    more: dict[Any, tuple[str, ...]] = {ValidateOperator: ("Spark UI", "Data Docs"), AccountOperator: ()}
    more |= dict.fromkeys((BoundedRunOperator, RedriveOperator, ResetOperator, RetractOperator), ("Spark UI",))
    for kind, names in more.items():
        assert {link.name for link in kind.operator_extra_links} == {"Sluice", *names}


def button(place: str | None) -> str:
    judgement = None if place is None else {"data_docs": place}
    ti: Any = SimpleNamespace(xcom_pull=lambda **_: judgement)
    return str(DataDocsLink().get_link(SimpleNamespace(task_id="validate"), ti_key=ti))


@pytest.mark.parametrize("folder", [None, "/srv/docs"], ids=["unset", "no address"])
def test_data_docs_link_opens_sluices_own_page(home: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://air.example/af")
    monkeypatch.delenv("SLUICE_DATA_DOCS_URL", raising=False)
    if folder:
        monkeypatch.setenv("SLUICE_DATA_DOCS_URL", folder)
    assert button(str(home / INDEX)) == "https://air.example/af/sluice/data-docs/demo/index.html"
    elsewhere = ("", None, "/elsewhere/index.html", str(home / "quality" / "demo" / "index.html"))
    assert [button(place) for place in elsewhere] == ["", "", "", ""]


@pytest.mark.parametrize("base", ["https://docs.example/gx", "https://docs.example/gx/", " https://docs.example/gx"])
def test_data_docs_link_opens_the_server_that_serves_the_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.setenv("SLUICE_DATA_DOCS_URL", base)
    assert button(str(home / INDEX)) == f"https://docs.example/gx/{INDEX.removeprefix('quality/')}"
    assert [button(place) for place in ("/elsewhere/index.html", None)] == ["", ""], "not in the folder"
    assert button("https://other.example/x") == "https://other.example/x"
