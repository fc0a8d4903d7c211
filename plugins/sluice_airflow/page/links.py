"""Where the page is, for those who link to it."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from airflow.sdk.configuration import conf

__all__ = ["PREFIX", "ROUTE", "data_docs_at", "page_at"]

PREFIX = "sluice"
"""The path of the app below Airflow's."""

ROUTE = "sluice"
"""The name of the page in Airflow's own addresses."""


def page_at(pipeline: str, run_id: str | None = None) -> str:
    """Return the address of a pipeline's page, or of one of its runs there, within Airflow's frame."""
    query = urlencode({"pipeline": pipeline, **({"run": run_id} if run_id else {})})
    base = _base()
    return f"{base}plugin/{ROUTE}/{_path(base)}{PREFIX}/?{query}"


def data_docs_at(pipeline: str, page: str) -> str:
    """Return the address of a page of a pipeline's Data Docs, as the app serves it."""
    return f"{_base()}{PREFIX}/data-docs/{quote(pipeline)}/{quote(page)}"


def _base() -> str:
    return f"{str(conf.get('api', 'base_url', fallback='') or '').rstrip('/')}/"


def _path(base: str) -> str:
    # https://host/af/ -> af/
    return base.partition("://")[2].partition("/")[2] if "://" in base else base.lstrip("/")
