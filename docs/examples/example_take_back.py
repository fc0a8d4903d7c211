"""Settles what went wrong, by hand and with a reason: takes rows back, accepts them, or closes what stays lost."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from sluice_airflow.operators.accept import AcceptOperator
from sluice_airflow.operators.acknowledge import AcknowledgeOperator
from sluice_airflow.operators.retract import RetractOperator
from sluice_airflow.retry import TypedRetryPolicy

with DAG(
    "example_take_back",
    schedule=None,
    params={
        "what": Param("", type="string", title="Retract", description_md="A run's id, or ranges."),
        "good": Param("", type="string", title="Accept", description_md="The id of a run whose verdict failed."),
        "gone": Param("orders:0:0-0", type="string", title="Acknowledge", description_md="Ranges that stay lost."),
        "reason": Param("wrong currency", type="string", title="Reason"),
    },
    default_args={"retry_policy": TypedRetryPolicy()},
):
    # [START howto_operator_retract]
    retract = RetractOperator(
        task_id="retract",
        pipeline="orders",
        what="{{ params.what }}",  # a run's id, or ranges TOPIC:PARTITION:START-END with spaces between
        reason="{{ params.reason }}",
    )
    # [END howto_operator_retract]

    # [START howto_operator_acknowledge]
    acknowledge = AcknowledgeOperator(
        task_id="acknowledge",
        pipeline="orders",
        ranges="{{ params.gone }}",
        reason="{{ params.reason }}",
        trigger_rule="none_failed",
    )
    # [END howto_operator_acknowledge]

    # [START howto_operator_accept]
    accept = AcceptOperator(
        task_id="accept",
        pipeline="orders",
        of_run="{{ params.good }}",
        reason="{{ params.reason }}",
        trigger_rule="none_failed",
    )
    # [END howto_operator_accept]

    retract >> acknowledge >> accept
