"""The tasks of one pipeline, one by one: for what a group does not offer."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from sluice.pipeline import load
from sluice_airflow.operators.account import AccountOperator
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator
from sluice_airflow.params import of
from sluice_airflow.retry import TypedRetryPolicy
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor

with DAG(
    "example_operators",
    schedule=None,
    max_active_runs=1,
    params=of(load("orders")),  # the fields of the trigger form
    default_args={"retries": 3, "retry_policy": TypedRetryPolicy()},
):
    # [START howto_sensor_kafka_lag]
    wait = KafkaLagSensor(
        task_id="wait_for_lag",
        pipeline="orders",
        max_records=100_000,  # instead of the limits in the pipeline's file
        max_age="15m",
        on_idle="wait",
        timeout=timedelta(hours=1),
    )
    # [END howto_sensor_kafka_lag]

    # [START howto_operator_bounded_run]
    ingest = BoundedRunOperator(
        task_id="ingest",
        pipeline="orders",
        max_records_per_batch=50_000,
        driver_memory="2g",
        execution_timeout=timedelta(hours=6),
    )
    # [END howto_operator_bounded_run]

    # [START howto_operator_validate]
    validate = ValidateOperator(task_id="validate", pipeline="orders")
    # [END howto_operator_validate]

    # [START howto_operator_account]
    account = AccountOperator(
        task_id="account",
        pipeline="orders",
        name="orders",
        trigger_rule="all_done",  # prints the account of a failed run, too, and then fails itself
    )
    # [END howto_operator_account]

    wait >> ingest >> validate >> account
    ingest >> account
