"""Repairs a pipeline each night; ``airflow: {maintenance: …}`` in its file makes a DAG like this one."""

from __future__ import annotations

from airflow.sdk import DAG

from sluice_airflow.operators.audit import AuditOperator
from sluice_airflow.operators.clean import CleanOperator
from sluice_airflow.operators.compact import CompactOperator
from sluice_airflow.operators.freshness import FreshnessOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.vacuum import VacuumOperator
from sluice_airflow.retry import TypedRetryPolicy

with DAG("example_repair", schedule="@daily", catchup=False, default_args={"retry_policy": TypedRetryPolicy()}):
    # [START howto_operator_redrive]
    redrive = RedriveOperator(task_id="redrive", pipeline="orders", what="lost")  # skipped if nothing is lost
    # [END howto_operator_redrive]

    # [START howto_operator_audit]
    audit = AuditOperator(task_id="audit", pipeline="orders", deep=True, trigger_rule="none_failed")
    # [END howto_operator_audit]

    # [START howto_operator_clean]
    clean = CleanOperator(task_id="clean", pipeline="orders", older_than="14d")
    # [END howto_operator_clean]

    # [START howto_operator_compact]
    compact = CompactOperator(task_id="compact", pipeline="orders")
    # [END howto_operator_compact]

    # [START howto_operator_vacuum]
    vacuum = VacuumOperator(task_id="vacuum", pipeline="orders", older_than="14d")
    # [END howto_operator_vacuum]

    # [START howto_operator_freshness]
    fresh = FreshnessOperator(task_id="fresh", pipeline="orders", max_age="2h")
    # [END howto_operator_freshness]

    redrive >> audit >> clean >> compact >> vacuum >> fresh
