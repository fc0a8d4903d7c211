"""Gives a pipeline another name, with all that it has; triggered by hand."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from sluice_airflow.operators.adopt import AdoptOperator
from sluice_airflow.retry import TypedRetryPolicy

with DAG(
    "example_rename",
    schedule=None,
    params={"former": Param("sales", type="string", title="Former name")},
    default_args={"retry_policy": TypedRetryPolicy()},
):
    # [START howto_operator_adopt]
    adopt = AdoptOperator(
        task_id="adopt",
        pipeline="orders",  # the file has the new name, and names the same sink
        former="{{ params.former }}",
    )
    # [END howto_operator_adopt]
