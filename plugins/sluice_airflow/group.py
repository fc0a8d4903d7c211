"""The tasks of one pipeline: those of the DAG that its file makes, and as a group in a DAG of one's own."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import TaskGroup

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load, pipelines_folder
from sluice.recovery import Recovery
from sluice_airflow.gate import OnIdle
from sluice_airflow.operators.account import AccountOperator
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator
from sluice_airflow.priority import weight_rule
from sluice_airflow.retry import TypedRetryPolicy
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor

__all__ = ["RUN", "SluiceTaskGroup", "Tasks", "add_tasks", "default_args_of", "pool_of", "reference_of"]

RUN = "{{ run_id }}"
"""A run's id in the DAG of a file: Airflow's."""

_LONGEST_DAG = 100
"""How much of a DAG's id a run's id may hold: Airflow allows 250 characters, and the ledger 250 for all of it."""

_PER_TASK = {
    "owner": "owner",
    "queue": "queue",
    "retries": "retries",
    "priority": "priority_weight",
    "execution_timeout": "execution_timeout",
}
"""Keys of a file's ``airflow`` that its tasks take, and what Airflow calls them."""


@dataclass(frozen=True)
class Tasks:
    """The tasks of one pipeline; without a sensor where its source is not Kafka."""

    wait_for_lag: KafkaLagSensor | None
    ingest: BoundedRunOperator
    validate: ValidateOperator
    account: AccountOperator


class SluiceTaskGroup(TaskGroup):
    """``wait_for_lag`` → ``ingest`` → ``validate`` → ``account`` of one pipeline, in a DAG of one's own.

    The tasks are those of the DAG that a pipeline file makes, with ids such as ``orders.ingest``, and attributes of
    this group. What depends on the group depends on ``account``. A pipeline has one live writer, so a DAG whose runs
    overlap makes the second one wait for the first.

    A backfill of the DAG means the interval of each of its runs, as in a pipeline's own DAG. The trigger form has
    Sluice's fields if the DAG is made with ``params=sluice_airflow.params.of(pipeline)``.

    Parameters
    ----------
    pipeline
        The pipeline, its name, or its file. A file directly in the folder of pipelines makes a DAG of its own as well:
        one for a group lies in a folder below it.
    group_id
        By default the pipeline's name.
    recovery
        The strategy of this task; by default the run's param, else the file's.
    on_idle
        What ``wait_for_lag`` does in every run when too little waits; see :func:`~sluice_airflow.factory.build_dag`.
    spark_conn_id
        The Spark connection, instead of the one that the file names.
    run_id
        The run's id in the ledger (templated). By default the DAG's id, a dot and Airflow's ``run_id``, which is unique
        only within a DAG: those of one cron line have the same.
    default_args
        Arguments of these tasks. They override the keys of the file's ``airflow`` that are for tasks (owner, queue,
        retries, priority, execution_timeout); these override the DAG's ``default_args``, and those what is Sluice's
        default.
    **kwargs
        As of ``TaskGroup``; ``prefix_group_id=False`` leaves the group's id out of the tasks' ids.

    Raises
    ------
    ConfigError
        With every mistake of the file; also when the DAG has a group of this pipeline with the same run id.
    """

    def __init__(
        self,
        pipeline: Pipeline | Path | str,
        *,
        group_id: str | None = None,
        recovery: Recovery | str | None = None,
        on_idle: OnIdle | None = None,
        spark_conn_id: str | None = None,
        run_id: str | None = None,
        default_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        spec = pipeline if isinstance(pipeline, Pipeline) else load(pipeline)
        super().__init__(group_id or spec.name, **{"tooltip": f"One bounded run of {spec.name}", **kwargs})
        self.pipeline = spec.name
        self.run_id = _run_of(self.dag.dag_id) if run_id is None else run_id
        self._refuse_a_second()
        around = {**self.dag.default_args, **(self.parent_group.default_args if self.parent_group else {})}
        self.default_args: dict[str, Any] = default_args_of(spec, around, default_args)
        with self:
            tasks = add_tasks(
                spec,
                reference_of(spec),
                recovery=recovery,
                on_idle=on_idle,
                spark_conn_id=spark_conn_id,
                run_id=self.run_id,
            )
        self.wait_for_lag = tasks.wait_for_lag
        self.ingest = tasks.ingest
        self.validate = tasks.validate
        self.account = tasks.account

    def _refuse_a_second(self) -> None:
        for other in self.dag.task_group.get_task_group_dict().values():
            if other is self or not isinstance(other, SluiceTaskGroup):
                continue
            if (other.pipeline, other._rendered()) == (self.pipeline, self._rendered()):
                raise ConfigError(
                    f"DAG {self.dag.dag_id!r} has two groups of pipeline {self.pipeline!r}, {other.group_id!r} and "
                    f"{self.group_id!r}, whose runs would be one run in the ledger",
                    state="nothing was read or written",
                    next_step="remove one, or give it a run of its own: run_id='{{ dag.dag_id }}.again.{{ run_id }}'",
                )

    def _rendered(self) -> str:
        """Return the template of the run's id such that two of one meaning are equal, as far as that can be seen."""
        text = re.sub(r"\{\{-?\s*(.*?)\s*-?\}\}", r"{{\1}}", self.run_id.strip())
        return text.replace("{{dag.dag_id}}", self.dag.dag_id)


def _run_of(dag_id: str) -> str:
    """Return the template of a run's id that no other DAG has."""
    if len(dag_id) > _LONGEST_DAG:
        digest = hashlib.sha256(dag_id.encode()).hexdigest()[:16]
        dag_id = f"{dag_id[: _LONGEST_DAG - len(digest) - 1]}~{digest}"
    return f"{dag_id}.{RUN}"


def add_tasks(
    spec: Pipeline,
    reference: str,
    *,
    recovery: Recovery | str | None = None,
    on_idle: OnIdle | None = None,
    spark_conn_id: str | None = None,
    run_id: str = RUN,
) -> Tasks:
    """Make the tasks of a pipeline in the DAG, or the group, that is open.

    Parameters
    ----------
    reference
        The pipeline's name or path, by which the tasks find it.
    recovery, on_idle, spark_conn_id
        As of :class:`SluiceTaskGroup`.
    run_id
        The run's id in the ledger (templated).
    """
    wait = (
        KafkaLagSensor(
            task_id="wait_for_lag",
            pipeline=reference,
            on_idle=_on_idle(spec) if on_idle is None else on_idle,
            poke_interval=15,
            timeout=timedelta(minutes=30),
            soft_fail=on_idle is None
            and OnIdle(spec.lag.on_idle) is OnIdle.WAIT,  # too little, for half an hour: no failure
        )
        if spec.source.kafka
        else None
    )
    # a backfill starts as many runs as its option says (ten by default), whatever the DAG says: each is a driver
    spark: dict[str, Any] = {"conn_id": spark_conn_id, "max_active_tis_per_dag": spec.airflow.max_drivers}
    if pool := pool_of(spec):
        spark["pool"] = pool
    ingest = BoundedRunOperator(task_id="ingest", pipeline=reference, run_id=run_id, recovery=recovery, **spark)
    validate = ValidateOperator(task_id="validate", pipeline=reference, run_id=run_id, **spark)
    account = AccountOperator(
        task_id="account",
        pipeline=reference,
        name=spec.name,
        run_id=run_id,
        trigger_rule="all_done",  # it tells of a run that failed, too, and then fails itself
    )
    ingest >> validate >> account
    ingest >> account
    if wait is not None:
        wait >> ingest
    return Tasks(wait, ingest, validate, account)


def default_args_of(
    spec: Pipeline, outer: Mapping[str, Any] | None = None, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arguments of a pipeline's tasks.

    Parameters
    ----------
    outer
        Those of the DAG around them: what the file sets comes before them, what is only a default of Sluice's after.
    own
        Those that come before all others.
    """
    keys = spec.airflow
    ours = {name: getattr(keys, key) for key, name in _PER_TASK.items() if getattr(keys, key) is not None}
    said = {name: ours[name] for key, name in _PER_TASK.items() if key in keys.model_fields_set and name in ours}
    # a driver that hangs holds the pipeline's only run: execution_timeout ends it, and the retry goes on
    retrying = {"retry_delay": timedelta(minutes=1), "retry_policy": TypedRetryPolicy()}
    if (rule := weight_rule()) is not None:
        ours["weight_rule"] = rule
    return {**ours, **retrying, **(outer or {}), **said, **(own or {})}


def pool_of(spec: Pipeline) -> str | None:
    """Return the pool of the tasks that start Spark; None for Airflow's default one."""
    return spec.airflow.pool or os.environ.get("SLUICE_POOL") or None


def reference_of(spec: Pipeline) -> str:
    """Return what tasks find a pipeline's file by, in every component: its name below the folder of pipelines.

    A file elsewhere is its path.
    """
    try:
        below = spec.file.relative_to(pipelines_folder())
    except (ConfigError, ValueError):  # there may be no such folder
        return str(spec.file)
    return str(below.with_suffix("")) if below.suffix == ".yaml" else str(spec.file)


def _on_idle(spec: Pipeline) -> str:
    if OnIdle(spec.lag.on_idle) is OnIdle.PROCEED:
        return OnIdle.PROCEED
    return f"{{{{ '{spec.lag.on_idle}' if dag_run.run_type == 'scheduled' else '{OnIdle.PROCEED}' }}}}"
