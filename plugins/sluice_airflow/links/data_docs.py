"""The button that leads from a verdict to its Data Docs."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

__all__ = ["DataDocsLink"]


class DataDocsLink(BaseOperatorLink):
    """Data Docs of the judgement, where they are published under a URL; nothing for a folder on a worker's disk."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL, from the XCom ``judgement`` of the task instance that has just finished."""
        judgement = ti_key.xcom_pull(task_ids=operator.task_id, key="judgement") or {}
        place = str(judgement.get("data_docs") or "")
        return place if place.startswith(("http://", "https://")) else ""
