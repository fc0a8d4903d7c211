"""The key ``airflow`` of a pipeline file: how Airflow runs the DAG's tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field, field_validator

from sluice.fields import Duration, Strict

__all__ = ["Airflow"]


class Airflow(Strict):
    """How Airflow runs the DAG's tasks; without effect elsewhere."""

    execution_timeout: Duration = timedelta(hours=12)
    """The longest that one attempt of a task may take. Then Airflow ends its driver; a retry goes on with the run."""

    max_drivers: Annotated[int, Field(ge=1)] = 2
    """How many runs of the DAG may be in ``ingest`` at the same time: those of a backfill, and the live one."""
    pool: Annotated[str, Field(min_length=1)] | None = None
    """A pool of Airflow's, which has to exist, for the tasks that start Spark: it bounds several pipelines together."""

    @field_validator("execution_timeout")
    @classmethod
    def _execution_timeout(cls, timeout: timedelta) -> timedelta:
        if timeout <= timedelta(0):
            raise ValueError("a task that may take no time never runs: write 1m or more, such as 12h")
        return timeout
