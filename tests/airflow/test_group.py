"""The tasks of pipelines, as groups in a DAG that a team writes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, timezone
from tests.airflow.conftest import FakeSpark, states

from sluice.errors import ConfigError, SluiceError
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice_airflow.factory import build_dag
from sluice_airflow.group import SluiceTaskGroup, reference_of
from sluice_airflow.params import of
from sluice_airflow.retry import TypedRetryPolicy
from sluice_airflow.window import run_window

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

TASKS = ["wait_for_lag", "ingest", "validate", "account"]

TWO = """\
from airflow.sdk import DAG, task
from sluice_airflow.group import SluiceTaskGroup
from sluice_airflow.params import of
from sluice.pipeline import load

with DAG("two", schedule=None, params=of(load("orders")), default_args={{"retries": 0, "spark_binary": {binary!r}}}):
    orders = SluiceTaskGroup("orders")
    refunds = SluiceTaskGroup("refunds", group_id="back", recovery="hot")

    @task
    def report(account):
        return f"{{account['written']}} of {{account['run']}}"

    orders >> report(orders.account.output)
"""


@pytest.fixture
def two(pipeline_file: Any, dags_in: Any, spark: FakeSpark, backlog: Any, monkeypatch: pytest.MonkeyPatch) -> DAG:
    """A DAG file with two groups and a task that reads the account of one of them."""
    pipeline_file("refunds")
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file("orders").parent))
    found: DAG = dags_in(TWO.format(binary=spark.binary))["two"]
    return found


def xcom(run: Any, task: str, key: str = "return_value") -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.scalars(XComModel.get_many(run_id=run.run_id, dag_ids="two", task_ids=task, key=key)).first()
        return None if found is None else XComModel.deserialize_value(found)


def test_groups_of_one_dag_have_a_run_a_verdict_and_an_event_each(
    two: DAG, spark: FakeSpark, events: Any, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("SLUICE_DATA_DOCS_URL", "https://docs.example")
    judgement = {"results": [], "data_docs": str(home / "quality" / "site" / "p.html")}
    spark.plan("run", only="orders", written=[7], verdict="passed")
    spark.plan("run", only="refunds", written=[5], verdict="warned", judgement=judgement)
    run = two.test(logical_date=None)
    tasks = {f"{group}.{task}" for group in ("orders", "back") for task in TASKS}
    assert states(run) == dict.fromkeys(tasks | {"report"}, "success")
    assert xcom(run, "report") == f"7 of two.{run.run_id}"
    assert [(uri, extra["written"], extra["verdict"]) for uri, extra in sorted(events())] == [
        ("x-sluice://orders", 7, "passed"),
        ("x-sluice://refunds", 5, "warned"),
    ]
    assert [Ledger.open().runs.find(name, f"two.{run.run_id}").state for name in ("orders", "refunds")] == [
        "done",
        "done",
    ]
    assert spark.calls["run"]["action"].recovery in ("hot", "replay")
    links = {
        link.name: xcom(run, "back.validate", link.xcom_key)
        for link in two.get_task("back.validate").operator_extra_links
    }
    assert links["Data Docs"] == "https://docs.example/site/p.html"
    assert all(part in links["Sluice"] for part in ("refunds", f"run=two.{run.run_id[:20]}"))


def test_group_that_fails_leaves_the_other_alone(two: DAG, spark: FakeSpark, events: Any) -> None:
    spark.plan("run", written=[5], verdict="passed")
    spark.plan("run", only="orders", written=[7], verdict="failed", judgement={"results": []})
    run = two.test(logical_date=None)
    found = states(run)
    assert {task for task, state in found.items() if state == "failed"} == {"orders.validate", "orders.account"}
    assert found["report"] == "upstream_failed", "it waits for the whole group"
    assert {found[f"back.{task}"] for task in TASKS} == {"success"}
    assert [uri for uri, _ in events()] == ["x-sluice://refunds"]
    assert str(run.state) == "failed"


def test_group_names_the_task_of_the_next_step_by_its_id_in_the_dag(two: DAG, context: Any) -> None:
    for task in ("validate", "account"):
        operator = two.get_task(f"back.{task}")
        operator.run_id = "manual__1"
        operator._upstream = lambda _context: {}
        with pytest.raises(SluiceError) as caught:
            operator.execute(context())
        assert "'back.ingest'" in caught.value.next_step


def test_dag_of_a_file_has_the_tasks_of_a_group(pipeline_file: Any) -> None:
    dag = build_dag(pipeline_file())
    assert dag.task_ids == TASKS
    with DAG("mine", schedule=None):
        group = SluiceTaskGroup(pipeline_file(), prefix_group_id=False)
    assert [t.task_id for t in group] == TASKS
    for mine, theirs in zip(group, dag.tasks, strict=True):
        mine_of = {*type(mine).template_fields} - {"run_id"}
        for name in (*mine_of, "retries", "execution_timeout", "max_active_tis_per_dag", "pool"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert mine.upstream_task_ids == theirs.upstream_task_ids


def test_group_takes_the_nearest_setting(pipeline_file: Any) -> None:
    file = pipeline_file(more="airflow: {owner: team, retries: 7, pool: mine}\n")
    outer = {"owner": "dag", "queue": "far", "retries": 1, "execution_timeout": timedelta(hours=1)}
    with DAG("mine", schedule=None, default_args=outer), TaskGroup("outside", default_args={"queue": "near"}):
        group = SluiceTaskGroup(file, default_args={"retries": 9})
    for task in group:
        assert (task.owner, task.queue, task.retries) == ("team", "near", 9)
        assert (task.execution_timeout, task.retry_delay) == (timedelta(hours=1), timedelta(minutes=1))
        assert isinstance(task.retry_policy, TypedRetryPolicy)
    assert group.ingest.task_id == "outside.demo.ingest"
    assert (group.ingest.pool, group.account.pool) == ("mine", "default_pool")


def test_group_of_a_pipeline_that_has_one_needs_a_run_of_its_own(pipeline_file: Any) -> None:
    file = pipeline_file()
    with DAG("mine", schedule=None):
        SluiceTaskGroup(file)
        again = SluiceTaskGroup(file, group_id="again", run_id="{{ run_id }}__again")
        assert {t.run_id for t in (again.ingest, again.validate, again.account)} == {"{{ run_id }}__again"}
        with pytest.raises(ConfigError, match="'demo'"):
            SluiceTaskGroup(file, group_id="once_more")
        for same in ("mine.{{run_id}}", "{{ dag.dag_id}}.{{  run_id  }}", "{{- run_id -}}__again"):
            with pytest.raises(ConfigError, match="'demo'"):
                SluiceTaskGroup(file, group_id=f"no_{len(same)}", run_id=same)


def test_dags_of_one_pipeline_never_share_a_run(pipeline_file: Any, context: Any) -> None:
    from jinja2 import Environment

    file = pipeline_file()
    long = "d" * 240
    ids = [build_dag(file).get_task("ingest").run_id]
    for name in ("first", "second", f"{long}1", f"{long}2"):
        with DAG(name, schedule="@hourly"):
            ids.append(SluiceTaskGroup(file).ingest.run_id)
    scheduled = "scheduled__2026-11-02T00:00:00+00:00"
    found = [Environment().from_string(text).render(run_id=scheduled) for text in ids]
    assert found[:3] == [scheduled, f"first.{scheduled}", f"second.{scheduled}"]
    assert len(set(found)) == len(ids)
    assert max(map(len, found)) < 150
    day = {"data_interval_start": timezone.datetime(2013, 3, 1), "data_interval_end": timezone.datetime(2013, 3, 2)}
    backfill = {**context(), **day, "dag_run": SimpleNamespace(run_type="backfill", conf=None)}
    assert run_window(backfill, load(file), "first.backfill__1").run_id == "first.backfill__1__interval"


def test_group_refers_to_a_file_below_the_folder_by_its_name(
    pipeline_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pipeline_file()
    assert reference_of(load(file)) == str(file)
    monkeypatch.setenv("SLUICE_PIPELINES", str(file.parent.parent))
    assert reference_of(load(file)) == "pipelines/demo"
    assert load("pipelines/demo").file == file
    assert set(of(load(file))) > {"mode", "recovery"}
