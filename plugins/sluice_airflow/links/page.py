"""The button that leads from a task to its run on Sluice's page."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from sluice.errors import SluiceError
from sluice.pipeline import load
from sluice_airflow.page.links import page_at

__all__ = ["PageLink"]


class PageLink(BaseOperatorLink):
    """The pipeline's page, opened at the run of the task that has just ended."""

    name = "Sluice"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty when the pipeline's file is not valid any more."""
        try:
            return page_at(load(operator.pipeline).name, operator.run_id)
        except SluiceError:
            return ""
