"""The button from the task ``validate`` to its Data Docs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from sluice.home import Home
from sluice_airflow.page.links import data_docs_at

__all__ = ["DataDocsLink", "address_of"]

VARIABLE = "SLUICE_DATA_DOCS_URL"
"""The URL under which another program serves the folder ``quality`` of ``SLUICE_HOME``: the pages of all pipelines."""


class DataDocsLink(BaseOperatorLink):
    """Data Docs of the judgement: served by Sluice's page behind Airflow's login, or at ``SLUICE_DATA_DOCS_URL``."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL, from the XCom ``judgement`` of the task instance that has just finished; empty for none."""
        judgement = ti_key.xcom_pull(task_ids=operator.task_id, key="judgement") or {}
        return address_of(str(judgement.get("data_docs") or ""))


def address_of(place: str) -> str:
    """Return the URL of a page of the Data Docs, empty for a page that is not in the folder of Data Docs.

    Parameters
    ----------
    place
        Its path, or a URL, which is returned as it is.
    """
    if place.startswith(("http://", "https://")):
        return place
    base = os.environ.get(VARIABLE, "").strip().rstrip("/")
    folder = Path(Home.from_env().data_docs)
    if not place or not Path(place).is_relative_to(folder):
        return ""
    page = Path(place).relative_to(folder)
    if base.startswith(("http://", "https://")):
        return f"{base}/{quote(page.as_posix())}"
    return data_docs_at(page.parts[0], page.relative_to(Path(*page.parts[:5])).as_posix()) if page.parts[5:] else ""
