"""The button that leads from a task to its run on Sluice's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from sluice.errors import SluiceError
from sluice.pipeline import load
from sluice_airflow.page.links import page_at

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["PageLink"]


class PageLink(BaseOperatorLink):
    """The pipeline's page, opened at the run of the task."""

    name = "Sluice"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty when the pipeline's file is not valid any more."""
        try:
            return page_at(load(operator.pipeline).name, operator.run_id)
        except SluiceError:
            return ""

    def show(self, operator: Any, context: Context) -> None:
        """Show the button while the task runs: Airflow itself asks for the address when it has ended."""
        try:
            context["ti"].xcom_push(key=self.xcom_key, value=self.get_link(operator, ti_key=None))
        except Exception as trouble:  # a button is not worth a run
            operator.log.warning("There is no button %s while the task runs: %s", self.name, type(trouble).__name__)
