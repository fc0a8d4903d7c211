"""The DAG that tells when a pipeline's table is not fresh at a given time."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, timezone

from sluice.fields import written
from sluice.pipeline import Pipeline
from sluice.pipeline.airflow import Freshness
from sluice.text import length
from sluice_airflow.group import default_args_of
from sluice_airflow.operators.freshness import FreshnessOperator

__all__ = ["SUFFIX", "freshness_dag"]

SUFFIX = ".freshness"
"""The end of the DAG's id, behind the pipeline's name, which has no dot."""

_PAGE = """\
Fails at `{cron}` ({timezone}) if the pipeline `{name}` has not read a record that is older than {age}, and then calls
what the pipeline's file names under `airflow.on_failure` and `airflow.email`.

A deadline of Airflow's own counts from a run: without a run there is none. This check needs no run. Producers that are
silent do not make a table late.
"""


def freshness_dag(pipeline: Pipeline, wanted: Freshness, reference: str, **team: Any) -> DAG:
    """Return the DAG of ``airflow.freshness``.

    Parameters
    ----------
    reference
        The pipeline's name or path, for the task.
    **team
        More arguments of the DAG: callbacks, access.
    """
    dag = DAG(
        dag_id=f"{pipeline.name}{SUFFIX}",
        schedule=CronTriggerTimetable(wanted.cron, timezone=wanted.timezone),
        start_date=timezone.datetime(2000, 1, 1),
        catchup=False,
        max_active_runs=1,
        auto_register=False,
        description=f"Fails when the table of {pipeline.name} is not fresh",
        tags={"sluice", "freshness", *pipeline.airflow.tags},
        doc_md=_PAGE.format(
            name=pipeline.name,
            cron=wanted.cron,
            timezone=wanted.timezone,
            age=length(wanted.max_age.total_seconds()),
        ),
        default_args=default_args_of(pipeline),
        params={
            "max_age": Param(
                written(wanted.max_age), type="string", description="The largest age of an unread record, such as 2h"
            )
        },
        **team,
    )
    with dag:
        FreshnessOperator(task_id="fresh", pipeline=reference, max_age="{{ params.max_age }}")
    return dag
