"""Begins a pipeline again, where the form says; triggered by hand, with a reason."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from sluice_airflow.operators.reset import ResetOperator
from sluice_airflow.retry import TypedRetryPolicy

with DAG(
    "example_begin_again",
    schedule=None,
    params={
        "begin": Param("", type="string", title="From", description_md="`earliest`, `latest`, a time, or nothing."),
        "truncate": Param(False, type="boolean", title="Take all rows out first"),
        "reason": Param("checkpoint lost", type="string", title="Reason"),
    },
    default_args={"retry_policy": TypedRetryPolicy()},
):
    # [START howto_operator_reset]
    reset = ResetOperator(
        task_id="reset",
        pipeline="orders",
        begin="{{ params.begin }}",  # earliest, latest, a time, or nothing: where it stopped
        truncate="{{ params.truncate }}",  # needed for an earlier start
        reason="{{ params.reason }}",
    )
    # [END howto_operator_reset]
