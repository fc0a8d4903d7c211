"""Addresses of the page, wherever Airflow is."""

from __future__ import annotations

import pytest

from sluice_airflow.page.links import data_docs_at, page_at

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    ("base", "page", "docs"),
    [
        ("https://air.example", "https://air.example/plugin/sluice/sluice/", "https://air.example/sluice/"),
        (
            "https://air.example/af/",
            "https://air.example/af/plugin/sluice/af/sluice/",
            "https://air.example/af/sluice/",
        ),
        ("", "/plugin/sluice/sluice/", "/sluice/"),
    ],
)
def test_they_are_below_airflows_own(monkeypatch: pytest.MonkeyPatch, base: str, page: str, docs: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    assert page_at("orders") == f"{page}?pipeline=orders"
    assert page_at("orders", "manual__1+2") == f"{page}?pipeline=orders&run=manual__1%2B2"
    assert data_docs_at("orders", "index.html") == f"{docs}data-docs/orders/index.html"
