"""Two pipelines and a task of one's own in one DAG."""

from __future__ import annotations

from airflow.sdk import DAG, task

# [START howto_task_group]
from sluice_airflow.group import SluiceTaskGroup

with DAG("example_task_group", schedule="@hourly", catchup=False, max_active_runs=1):
    orders = SluiceTaskGroup("orders")
    refunds = SluiceTaskGroup("refunds", recovery="wal", default_args={"retries": 5})

    @task
    def report(account: dict[str, int]) -> str:
        return f"{account['written']} orders, {account['lost']} lost"

    [orders, refunds] >> report(orders.account.output)
# [END howto_task_group]
