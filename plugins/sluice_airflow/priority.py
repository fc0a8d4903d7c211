"""Which of a pipeline's runs gets a free place first: a live one, before those of a backfill."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import get_priority_weight_strategy_plugins
from airflow.task.priority_strategy import PriorityWeightStrategy

__all__ = ["LiveFirst", "weight_rule"]

_BACKFILL = "backfill__"


class LiveFirst(PriorityWeightStrategy):
    """The tasks of a backfill's runs weigh 1; all others as by Airflow's default, with those downstream of them.

    For equal weights Airflow prefers the oldest logical date, which is always the backfill's. It is known by its run's
    id: a live run that a backfill reprocesses (``--reprocess-behavior``) keeps its id, and its weight.
    """

    def get_weight(self, ti: Any) -> int:
        """Return the weight of a task instance."""
        if ti.run_id.startswith(_BACKFILL):
            return 1
        dag = ti.task.get_dag()
        after = ti.task.get_flat_relative_ids(upstream=False) if dag else ()
        return int(ti.task.priority_weight + sum(dag.task_dict[task_id].priority_weight for task_id in after))

    def __repr__(self) -> str:
        """Return the same in each process: Airflow stores it, and takes any other text for a new version of the DAG."""
        return f"{type(self).__name__}()"


def weight_rule() -> LiveFirst | None:
    """Return the rule; None where Airflow does not know it, such as before an upgrade's entry points are installed."""
    known = f"{LiveFirst.__module__}.{LiveFirst.__qualname__}" in get_priority_weight_strategy_plugins()
    return LiveFirst() if known else None
