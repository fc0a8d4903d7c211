"""The DAGs that pipeline files make: their tasks, limits, form, pages, and what a bad file costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.triggers.base import BaseEventTrigger
from tests.airflow.conftest import PROJECT
from tests.fixtures.golden import Golden

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice_airflow.factory import build_all, build_dag, refuse_bad_files
from sluice_airflow.operators.account import asset_of
from sluice_airflow.priority import LiveFirst
from sluice_airflow.retry import TypedRetryPolicy
from sluice_airflow.triggers.lag_watcher import LagWatcher, lag_asset

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

FRESH = 'freshness: {max_age: 2h, cron: "0 7 * * *", timezone: Europe/Berlin}'


def test_factory_makes_of_a_bad_file_one_import_error_and_all_other_dags(
    pipeline_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline_file("good")
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file("bad", more="recovry: replay\n").parent))
    (tmp_path / "dags").mkdir()
    for file in (PROJECT / "dags").glob("pipeline*.py"):
        (tmp_path / "dags" / file.name).write_text(file.read_text())
    bag = DagBag(tmp_path / "dags")
    assert set(bag.dags) == {"good"}
    ((where, what),) = bag.import_errors.items()
    # An import error stops the scheduling of every DAG of its file: it must not be the file of the good ones.
    assert where.endswith("pipeline_errors.py")
    assert "bad.yaml" in what
    assert "'recovery'" in what


def test_factory_makes_no_new_version_of_a_dag_that_is_parsed_twice(pipeline_file: Any) -> None:
    more = (
        'schedule: {cron: "@daily"}\n'
        "airflow: {tags: [a, b, c], access_control: {A: [can_read, can_edit], B: [can_read]},"
        ' maintenance: manual, freshness: {cron: "@daily", max_age: 2h}}\n'
    )
    folder = pipeline_file("orders", more=more).parent
    pipeline_file("lagging", more="schedule: on_lag\n")
    code = (
        "import json, pathlib, sys; from airflow.serialization.serialized_objects import DagSerialization\n"
        "from airflow.models.serialized_dag import SerializedDagModel\n"
        "from sluice_airflow.factory import build_all, refuse_bad_files\n"
        "refuse_bad_files(pathlib.Path(sys.argv[1]))\n"
        "dags = build_all(pathlib.Path(sys.argv[1]))\n"
        "data = {name: DagSerialization.to_dict(dag) for name, dag in dags.items()}\n"
        "print(json.dumps([{name: SerializedDagModel.hash(found) for name, found in data.items()}, str(data)]))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    started = [  # as two processes of the DAG processor
        subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in "12"
    ]
    parsed = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    assert set(parsed[0][0]) == {"lagging", "orders", "orders.freshness", "orders.maintenance"}
    assert parsed[0][0] == parsed[1][0]
    assert not any(" at 0x" in text for _, text in parsed), "an address in memory is another one in each process"


@pytest.mark.parametrize("second", ["second.yaml", "finance/first.yaml"])
def test_factory_refuses_the_second_file_of_a_pipeline_name(pipeline_file: Any, second: str) -> None:
    first = pipeline_file("first")
    (first.parent / "finance").mkdir()
    (first.parent / "finance" / "bad.yaml").write_text("nonsense")  # it makes no DAG: its users get the error
    refuse_bad_files(first.parent)
    (first.parent / second).write_text(first.read_text())
    assert set(build_all(first.parent)) == {"first"}
    with pytest.raises(ConfigError) as caught:
        refuse_bad_files(first.parent)
    assert second in caught.value.what
    assert "first.yaml already" in caught.value.what


def test_factory_names_all_bad_files(pipeline_file: Any) -> None:
    pipeline_file("one", more="x: 1\n")
    pipeline_file("bad", more='airflow: {maintenance: "every sunday"}\n')
    two = pipeline_file("two")
    two.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"(?s)bad\.yaml.*one\.yaml.*two\.yaml"):
        refuse_bad_files(two.parent)
    assert build_all(two.parent) == {}


def test_factory_builds_in_a_process_of_a_task_only_its_dag(
    pipeline_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline_file("other", more="schedule: on_lag\n")
    folder = pipeline_file(more=f"airflow: {{maintenance: manual, {FRESH}}}\n").parent
    known = {"demo", "demo.maintenance", "demo.freshness", "other"}
    assert set(build_all(folder)) == known
    for wanted in known:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
        assert set(build_all(folder)) == {wanted}


def test_dag_of_a_pipeline_on_lag_has_an_asset_of_its_own(pipeline_file: Any) -> None:
    file = pipeline_file(more="schedule: on_lag\n")
    (asset,) = build_dag(file).timetable.asset_condition.objects
    assert asset.uri == "x-sluice://demo/lag"
    assert (asset.name, asset.uri) != (asset_of("demo").name, asset_of("demo").uri)
    ((watcher, other),) = zip(asset.watchers, lag_asset(load(file), str(file)).watchers, strict=True)
    assert BaseEventTrigger.hash(*watcher.trigger.serialize()) == BaseEventTrigger.hash(*other.trigger.serialize())
    assert watcher.trigger.dag_id == "demo"
    (asset,) = build_dag(file, poll_interval=4, retry_after=20).timetable.asset_condition.objects
    kwargs = asset.watchers[0].trigger.serialize()[1]
    assert (kwargs["poll_interval"], kwargs["retry_after"], LagWatcher(**kwargs).retry_after) == (4, 20, 20)


def test_dag_of_a_pipeline_on_cron_has_a_timetable(pipeline_file: Any) -> None:
    hourly = build_dag(pipeline_file(more='schedule: {cron: "5 * * * *", timezone: Europe/Berlin}\n'))
    assert (hourly.timetable.expression, str(hourly.timetable.timezone)) == ("5 * * * *", "Europe/Berlin")


@pytest.mark.parametrize(
    "schedule", ["none", "on_lag", '{cron: "5 * * * *", timezone: Europe/Berlin}'], ids=["none", "on_lag", "cron"]
)
def test_dag_has_a_doc_of_its_pipeline(pipeline_file: Any, golden: Golden, schedule: str) -> None:
    more = f"schedule: {schedule}\n" + ("rows: aggregate\n" if schedule == "none" else "")
    golden("airflow", str(build_dag(pipeline_file(more=more)).doc_md))


def test_trigger_form_has_types_and_the_values_of_the_file(pipeline_file: Any) -> None:
    params = build_dag(pipeline_file()).params
    assert params.dump() == {
        "mode": "auto", "start": None, "end": None, "reason": None,
        "recovery": "replay", "max_records_per_batch": 1000, "validate": True,
    }  # fmt: skip
    recovery = params.get_param("recovery").schema
    assert recovery["enum"] == [r.value for r in Recovery]
    assert set(recovery["values_display"]) == set(recovery["enum"])
    assert all(r.promise for r in Recovery)
    for name, bad in (
        ("recovery", "hope"), ("max_records_per_batch", 0), ("max_records_per_batch", 1 << 63), ("validate", "yes"),
        ("mode", "sideways"), ("start", "soon"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"Invalid input|is not|less than|greater than|does not match"):
            build_dag(pipeline_file()).params.get_param(name).resolve(bad)


WINDOW = "window: {time: _timestamp, size: 1h, watermark: 1h, aggregates: {n: count(*)}}\n"


@pytest.mark.parametrize(
    ("more", "intervals"),
    [
        ("", "record time"),
        (WINDOW, "event time"),
        (WINDOW.replace("size: 1h", "gap: 10m, by: [id]"), "event time"),
        (WINDOW.replace("watermark: 1h", "output: complete"), None),
        ("rows: aggregate\n", None),
    ],
    ids=["stateless", "windows", "sessions", "complete", "aggregate"],
)
def test_trigger_form_offers_intervals_where_the_pipeline_has_some(
    pipeline_file: Any, more: str, intervals: str | None
) -> None:
    params = build_dag(pipeline_file(more=more)).params
    mode = params.get_param("mode").schema
    assert ("interval" in mode["enum"], "start" in params, "end" in params) == (intervals is not None,) * 3
    assert intervals is None or intervals in mode["description_md"]
    assert ("ignore_batch" in params.get_param("recovery").schema["enum"]) == (more == ""), "it is for stateless ones"


def test_dag_looks_runs_and_alerts_as_the_file_says(
    pipeline_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alerts.py").write_text("def page(context):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    more = f"""\
recovery_choices: [replay, hot]
airflow:
  owner: team
  tags: [gold]
  description: Orders of all shops
  start_date: 2026-03-01
  access_control: {{Analyst: [can_read], Team: [can_read, can_edit]}}
  retries: 7
  queue: far
  priority: 5
  execution_timeout: 90m
  on_failure: ["alerts:page"]
  email: [team@example.org, lead@example.org]
  maintenance: "0 5 * * 0"
  maintenance_access_control: {{Team: [can_edit]}}
  {FRESH}
"""
    dags = build_all(pipeline_file("p", more=more).parent)
    assert set(dags) == {"p", "p.maintenance", "p.freshness"}
    for dag in dags.values():
        assert dag.owner == "team"
        assert {"gold", "sluice"} <= set(dag.tags)
        everybody = {"Analyst": {"DAGs": {"can_read"}}, "Team": {"DAGs": {"can_read", "can_edit"}}}
        of_maintenance = {"Team": {"DAGs": {"can_edit"}}}
        assert dag.access_control == (of_maintenance if dag.dag_id == "p.maintenance" else everybody)
        page, mail = dag.on_failure_callback
        assert (page.target, mail.notifier.to) == ("alerts:page", ["team@example.org", "lead@example.org"])
        assert mail.notifier.subject == "{{ sluice.subject }}"
        assert dag.on_success_callback is None
    for task in (task for dag in dags.values() for task in dag.tasks):
        said = (task.queue, task.priority_weight, task.retries, task.execution_timeout)
        assert said == ("far", 5, 7, timedelta(minutes=90)), task
        assert isinstance(task.retry_policy, TypedRetryPolicy)
        assert isinstance(task.weight_rule, LiveFirst)
    assert (dags["p"].description, "recovery:replay" in dags["p"].tags) == ("Orders of all shops", True)
    assert dags["p"].params.get_param("recovery").schema["enum"] == ["replay", "hot"]
    assert "0 5 * * 0" in repr(dags["p.maintenance"].timetable)
    fresh = dags["p.freshness"]
    assert (fresh.timetable.expression, str(fresh.timetable.timezone)) == ("0 7 * * *", "Europe/Berlin")
    assert ("freshness" in fresh.tags, fresh.max_active_runs) == (True, 1)
    plain = build_dag(pipeline_file("q"))
    assert [dag.start_date.year for dag in (dags["p"], plain)] == [2026, 2000]
    assert {t.execution_timeout for t in plain.tasks} == {timedelta(hours=12)}


def test_maintenance_dag_has_the_steps_that_the_file_chooses(pipeline_file: Any, golden: Golden) -> None:
    pipeline_file("by_hand", more="airflow: {maintenance: manual}\n")
    asked = "airflow: {maintenance: manual, maintenance_steps: [audit, compact, vacuum]}\n"
    dags = build_all(pipeline_file("p", more=asked).parent)
    by_hand, chosen = dags["by_hand.maintenance"], dags["p.maintenance"]
    assert by_hand.schedule is None
    assert [t.task_id for t in by_hand.topological_sort()] == ["redrive", "audit", "clean"]
    assert [t.task_id for t in chosen.topological_sort()] == ["redrive", "audit", "compact", "vacuum"]
    assert [t.task_id for t in chosen.tasks if t.trigger_rule == "none_failed"] == ["audit"]
    golden("airflow", str(chosen.doc_md))


@pytest.mark.parametrize(
    ("more", "environment", "drivers", "pool"),
    [
        ("", "", 2, "default_pool"),
        ("", "every_driver", 2, "every_driver"),
        ("airflow: {pool: mine, max_drivers: 4}\n", "every_driver", 4, "mine"),
    ],
)
def test_dag_tasks_that_start_spark_are_bounded_by_a_number_and_a_pool(
    pipeline_file: Any, monkeypatch: pytest.MonkeyPatch, more: str, environment: str, drivers: int,
    pool: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SLUICE_POOL", environment)
    found = {t.task_id: (t.max_active_tis_per_dag, t.pool) for t in build_dag(pipeline_file(more=more)).tasks}
    assert found == {
        "wait_for_lag": (None, "default_pool"), "ingest": (drivers, pool), "validate": (drivers, pool),
        "account": (None, "default_pool"),
    }  # fmt: skip


def test_dag_does_not_import_a_callback_before_it_is_called(
    pipeline_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text("import os\ndef page(context): pass\nos._exit(7)\n")
    (tmp_path / "mine.py").write_text(
        "called = []\ndef page(context): called.append(context)\nname = 'me'\ndef end(context): raise SystemExit(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    dags = [build_dag(load(pipeline_file("p", more=f'airflow: {{on_failure: ["{target}"]}}\n')))
            for target in ("ending:page", "mine:page", "mine:name", "mine:end")]  # fmt: skip
    assert not {"ending", "mine"} & sys.modules.keys()
    (_,), (page,), (name,), (end,) = (dag.on_failure_callback for dag in dags)
    page({"run": 1})
    assert sys.modules["mine"].called == [{"run": 1}]
    with pytest.raises(ConfigError, match=r"airflow\.on_failure: mine:name is neither"):
        name({})
    with pytest.raises(ConfigError, match=r"mine:end called sys\.exit\(3\)"):
        end({})  # in a process that calls those of other pipelines, too


LOOK = """\
import json, sys
sys.modules["openlineage"] = None  # the operators do not need its provider
import sluice_airflow.factory as factory, sluice_airflow.plugin
built = sorted(factory.build_all())
del sys.modules["openlineage"]
names = ("pyspark", "great_expectations", "kafka", "pandas", "delta", "pyarrow", "sluice_spark",
         "sluice_airflow.lineage", "sluice_airflow.page.app")
found = [name for name in names if name in sys.modules]
# The loader imports each module below plugins/ under its bare file name, hooks/kafka.py as `kafka`, unless refused.
from airflow import plugins_manager
errors = plugins_manager._get_plugins()[1]
from kafka import KafkaConsumer, errors as _
print(json.dumps([built, found, errors]))
"""


def test_factory_imports_nothing_heavy_and_the_plugin_loader_hides_no_package() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-800:]
    built, found, errors = json.loads(done.stdout.splitlines()[-1])
    assert (built, found, errors) == (["flights", "flights_monthly"], [], {})
