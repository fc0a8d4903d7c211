"""Airflow's own scheduler gives a free place to a live run before a backfill, in its own database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, timezone

from sluice_airflow import priority
from sluice_airflow.factory import build_dag

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

FIRST = timezone.datetime(2013, 3, 1)


def test_scheduler_gives_a_free_place_to_a_live_run_before_a_backfill(
    pipeline_file: Any, dags_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place is free for ``ingest``: a day of a backfill runs, more and a live run wait."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.timetables.base import DataInterval
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    more = 'schedule: {cron: "@daily"}\nairflow: {priority: 5, max_drivers: 2}\n'
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file("mixed", more=more).parent))
    (tmp_path / "dags").mkdir()
    made = 'from sluice_airflow.factory import build_dag\n\n# Airflow\'s DAG\ndag = build_dag("mixed")\n'
    (tmp_path / "dags" / "mixed.py").write_text(made)
    dags_in(tmp_path / "dags")
    with create_session() as session:
        session.get(DagModel, "mixed").is_paused = False
        dag = SerializedDagModel.get_dag("mixed", session=session)
        days = [FIRST + timedelta(days=day) for day in range(4)]
        runs = [("backfill", DagRunType.BACKFILL_JOB, day) for day in days]
        for kind, run_type, day in [*runs, ("scheduled", DagRunType.SCHEDULED, timezone.datetime(2026, 11, 2))]:
            run = dag.create_dagrun(
                run_id=f"{kind}__{day.isoformat()}", run_type=run_type, logical_date=day, run_after=day,
                data_interval=DataInterval(day, day), state="running", session=session,
                triggered_by=DagRunTriggeredByType.TEST,
            )  # fmt: skip
            ingest = run.get_task_instance("ingest", session=session)
            ingest.state = "running" if (kind, day) == ("backfill", days[0]) else "scheduled"
        session.flush()
        found = SchedulerJobRunner(Job())._executable_task_instances_to_queued(max_tis=8, session=session)
        chosen = [str(ti.run_id) for ti in found if ti.dag_id == "mixed"]
        for run in session.query(DagRun).filter(DagRun.dag_id == "mixed"):
            session.delete(run)
    assert chosen == ["scheduled__2026-11-02T00:00:00+00:00"]


def test_dags_are_built_without_the_rule_where_no_plugin_names_it(
    pipeline_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rules(dag: DAG) -> set[bool]:
        return {isinstance(task.weight_rule, priority.LiveFirst) for task in dag.tasks}

    assert rules(build_dag(pipeline_file())) == {True}
    monkeypatch.setattr(priority, "get_priority_weight_strategy_plugins", dict)
    assert rules(build_dag(pipeline_file())) == {False}
