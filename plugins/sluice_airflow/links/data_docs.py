"""The button from the task ``validate`` to its Data Docs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from sluice.home import Home

__all__ = ["DataDocsLink", "address_of"]

VARIABLE = "SLUICE_DATA_DOCS_URL"
"""The URL under which somebody serves the folder ``quality`` of ``SLUICE_HOME``: the pages of all pipelines."""


class DataDocsLink(BaseOperatorLink):
    """Data Docs of the judgement, where they are served under a URL; no button for a folder on a worker's disk."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL, from the XCom ``judgement`` of the task instance that has just finished; empty for none."""
        judgement = ti_key.xcom_pull(task_ids=operator.task_id, key="judgement") or {}
        return address_of(str(judgement.get("data_docs") or ""))


def address_of(place: str) -> str:
    """Return the URL of a page of the Data Docs, empty when nobody serves it.

    Parameters
    ----------
    place
        Its path, or a URL, which is returned as it is.
    """
    if place.startswith(("http://", "https://")):
        return place
    base = os.environ.get(VARIABLE, "").strip().rstrip("/")
    folder = Path(Home.from_env().data_docs)
    if not place or not base.startswith(("http://", "https://")) or not Path(place).is_relative_to(folder):
        return ""
    return f"{base}/{quote(Path(place).relative_to(folder).as_posix())}"
