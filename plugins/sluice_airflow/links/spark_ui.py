"""The button from a task to the web UI of its Spark driver, while the driver lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["SparkUiLink"]


class SparkUiLink(BaseOperatorLink):
    """Spark's web UI, if the pipeline's file sets ``spark.ui.enabled``."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return nothing: Airflow asks when the task has ended, and its driver with it."""
        return ""

    def show(self, operator: Any, context: Context, address: str) -> None:
        """Show the button, from now until the task ends."""
        try:
            context["ti"].xcom_push(key=self.xcom_key, value=address)
        except Exception as trouble:  # a button is not worth a run
            operator.log.warning("There is no button %s: %s", self.name, type(trouble).__name__)
