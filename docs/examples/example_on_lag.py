"""A DAG that a backlog starts, and one that starts when there are new rows."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from sluice.pipeline import load

# [START howto_trigger_lag_watcher]
from sluice_airflow.group import SluiceTaskGroup
from sluice_airflow.triggers.lag_watcher import lag_asset

with DAG("example_on_lag", schedule=[lag_asset(load("orders"), "orders")], max_active_runs=1):
    SluiceTaskGroup("orders")
# [END howto_trigger_lag_watcher]

# [START howto_asset]
from sluice_airflow.operators.account import asset_of

with DAG("example_consumer", schedule=[asset_of("orders")]):

    @task
    def consume(triggering_asset_events: dict[Any, Any]) -> list[list[Any]]:
        events = triggering_asset_events[asset_of("orders")]
        return [new for event in events for new in event.extra["ranges"]]  # [topic, partition, start, end] each

    consume()
# [END howto_asset]
