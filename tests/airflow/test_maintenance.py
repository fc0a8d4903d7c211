"""The maintenance DAG of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.airflow.conftest import FakeSpark
from tests.airflow.operators.test_audit import commit

from sluice_airflow.factory import build_all
from sluice_airflow.priority import LiveFirst
from sluice_airflow.retry import TypedRetryPolicy

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_a_file_that_asks_for_it_makes_a_second_dag(pipeline_file: Callable[..., Path]) -> None:
    pipeline_file("plain")
    pipeline_file("weekly", more='airflow: {maintenance: "0 5 * * 0", owner: team}\n')
    folder = pipeline_file("by_hand", more="airflow: {maintenance: manual}\n").parent
    found = build_all(folder)
    assert set(found) == {"plain", "weekly", "weekly.maintenance", "by_hand", "by_hand.maintenance"}
    weekly = found["weekly.maintenance"]
    assert [t.task_id for t in weekly.topological_sort()] == ["redrive", "audit", "clean"]
    assert weekly.owner == "team"
    assert "0 5 * * 0" in repr(weekly.timetable)
    assert found["by_hand.maintenance"].schedule is None


def test_a_file_chooses_the_steps(pipeline_file: Callable[..., Path]) -> None:
    asked = "airflow: {maintenance: manual, maintenance_steps: [audit, compact, vacuum]}\n"
    dag = build_all(pipeline_file("p", more=asked).parent)["p.maintenance"]
    assert [t.task_id for t in dag.topological_sort()] == ["redrive", "audit", "compact", "vacuum"]
    assert [t.task_id for t in dag.tasks if t.trigger_rule == "none_failed"] == ["audit"]
    assert "`redrive` → `audit` → `compact` → `vacuum`" in str(dag.doc_md)
    assert "`sluice audit --deep`" in str(dag.doc_md)


def test_each_dag_of_a_file_has_what_the_file_says_of_tasks(pipeline_file: Callable[..., Path]) -> None:
    more = (
        "airflow: {maintenance: manual, queue: far, priority: 5, retries: 7, execution_timeout: 90m, "
        'freshness: {max_age: 2h, cron: "0 7 * * *"}}\n'
    )
    dags = build_all(pipeline_file("p", more=more).parent)
    assert set(dags) == {"p", "p.maintenance", "p.freshness"}
    for task in (task for dag in dags.values() for task in dag.tasks):
        said = (task.queue, task.priority_weight, task.retries, task.execution_timeout)
        assert said == ("far", 5, 7, timedelta(minutes=90)), task
        assert isinstance(task.retry_policy, TypedRetryPolicy)
        assert isinstance(task.weight_rule, LiveFirst)


def test_a_bad_cron_line_is_a_mistake_of_its_file(pipeline_file: Callable[..., Path]) -> None:
    folder = pipeline_file("bad", more='airflow: {maintenance: "every sunday"}\n').parent
    assert build_all(folder) == {}


def test_as_it_is_it_redrives_nothing_and_proves_the_account(
    pipeline_file: Callable[..., Path], spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit((0, 5))
    folder = pipeline_file("p", more="airflow: {maintenance: manual, retries: 0}\n").parent
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))  # for the DAG file that Airflow parses before the run
    dag = build_all(folder)["p.maintenance"]
    dag.get_task("audit").deep = False  # there are no tables
    run = dag.test(logical_date=None)
    states = {t.task_id: str(t.state) for t in run.get_task_instances()}
    assert states == {"redrive": "skipped", "audit": "success", "clean": "success"}
    assert spark.call("redrive.py") is None


def test_a_param_that_it_does_not_have_is_refused(
    pipeline_file: Callable[..., Path], spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pipeline_file("p", more="airflow: {maintenance: manual, retries: 0}\n").parent
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    run = build_all(folder)["p.maintenance"].test(logical_date=None, run_conf={"redriv": "lost"})
    states = {t.task_id: str(t.state) for t in run.get_task_instances()}
    assert states["redrive"] == "failed", "it would have succeeded, and redriven nothing"
