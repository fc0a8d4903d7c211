"""The DAGs that pipeline files make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.triggers.base import BaseEventTrigger
from tests.airflow.conftest import PROJECT, FakeSpark

from sluice.errors import ConfigError
from sluice.lag import Backlog, PartitionLag
from sluice.pipeline import load
from sluice_airflow.factory import build_all, build_dag, refuse_bad_files
from sluice_airflow.operators.account import asset_of
from sluice_airflow.triggers.lag_watcher import lag_asset

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

DAGS = PROJECT / "dags"


@pytest.fixture
def dags_of(tmp_path: Path) -> Callable[[Path], DagBag]:
    """Parse the project's own DAG files against another folder of pipelines."""

    def parse(pipelines: Path) -> DagBag:
        folder = tmp_path / "dags"
        folder.mkdir()
        for file in DAGS.glob("pipeline*.py"):
            text = file.read_text()
            for call in ("build_all(", "refuse_bad_files("):
                text = text.replace(f"{call})", f"{call}__import__('pathlib').Path({str(pipelines)!r}))")
            (folder / file.name).write_text(text)
        return DagBag(folder)

    return parse


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("recovry: replay\n", "did you mean 'recovery'?"),
        ("rows: aggregate\nrecovery: ignore_batch\n", "is for stateless pipelines"),
        ('schedule: {cron: "61 * * * *"}\n', "61"),
        ("{", "not YAML"),
    ],
)
def test_one_bad_file_is_one_import_error_and_takes_no_other_down(
    pipeline_file: Callable[..., Path], dags_of: Any, more: str, says: str
) -> None:
    pipeline_file("good")
    folder = pipeline_file("bad", more=more).parent
    bag = dags_of(folder)
    assert set(bag.dags) == {"good"}
    ((where, what),) = bag.import_errors.items()
    # An import error stops the scheduling of every DAG of its file: it must not be the file of the good ones.
    assert where.endswith("pipeline_errors.py")
    assert "bad.yaml" in what
    assert says in what


def test_a_dag_that_is_parsed_again_is_no_new_version_of_it(pipeline_file: Callable[..., Path]) -> None:
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
    parsed = []
    for seed in ("1", "2"):  # as two processes of the DAG processor
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)], env=env, stdout=subprocess.PIPE, text=True, check=True
        )
        parsed.append(json.loads(done.stdout.splitlines()[-1]))
    assert set(parsed[0][0]) == {"lagging", "orders", "orders.freshness", "orders.maintenance"}
    assert parsed[0][0] == parsed[1][0]
    assert not any(" at 0x" in text for _, text in parsed), "an address in memory is another one in each process"


def test_two_files_of_one_name(pipeline_file: Callable[..., Path]) -> None:
    first = pipeline_file("first")
    (first.parent / "second.yaml").write_text(first.read_text())
    assert set(build_all(first.parent)) == {"first"}
    with pytest.raises(ConfigError, match=r"is the name of .*/first\.yaml already"):
        refuse_bad_files(first.parent)


def test_a_file_below_may_not_have_the_name_of_one_that_makes_a_dag(pipeline_file: Callable[..., Path]) -> None:
    first = pipeline_file("first")
    below = first.parent / "finance"
    below.mkdir()
    (below / "bad.yaml").write_text("nonsense")  # it makes no DAG: whoever uses it is told
    refuse_bad_files(first.parent)
    (below / "first.yaml").write_text(first.read_text())
    assert set(build_all(first.parent)) == {"first"}
    with pytest.raises(ConfigError, match=r"finance/first\.yaml is not a valid pipeline") as caught:
        refuse_bad_files(first.parent)
    assert "is the name of" in caught.value.what


def test_all_bad_files_are_named(pipeline_file: Callable[..., Path]) -> None:
    pipeline_file("one", more="x: 1\n")
    two = pipeline_file("two")
    two.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"(?s)one\.yaml.*two\.yaml"):
        refuse_bad_files(two.parent)
    assert build_all(two.parent) == {}


def test_a_task_builds_only_its_own_dag(pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline_file("one")
    folder = pipeline_file("two").parent
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "two")
    assert set(build_all(folder)) == {"two"}


def test_parsing_imports_nothing_heavy() -> None:
    program = (
        "import sys, sluice_airflow.factory as f; f.build_all();"
        "heavy = {'pyspark', 'great_expectations', 'kafka', 'pandas', 'delta', 'pyarrow', 'sluice_spark'};"
        "bad = heavy & set(sys.modules);"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_pipeline_on_lag_is_a_dag_on_an_asset_of_its_own(pipeline_file: Callable[..., Path]) -> None:
    file = pipeline_file(more="schedule: on_lag\n")
    (asset,) = build_dag(file).timetable.asset_condition.objects
    assert asset.uri == "x-sluice://demo/lag"
    assert (asset.name, asset.uri) != (asset_of("demo").name, asset_of("demo").uri)
    ((watcher, other),) = zip(asset.watchers, lag_asset(load(file), str(file)).watchers, strict=True)
    assert BaseEventTrigger.hash(*watcher.trigger.serialize()) == BaseEventTrigger.hash(*other.trigger.serialize())
    assert watcher.trigger.dag_id == "demo"
    assert build_dag(file, poll_interval=4).timetable.asset_condition.objects[0].watchers[0].trigger.poll_interval == 4


def test_a_file_on_lag_is_built_with_the_others(pipeline_file: Callable[..., Path]) -> None:
    folder = pipeline_file("one", more="schedule: on_lag\n").parent
    pipeline_file("two")
    assert set(build_all(folder)) == {"one", "two"}


def test_a_team_sets_how_its_dags_look_and_whom_they_call(
    pipeline_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alerts.py").write_text("def page(context):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    more = """\
recovery_choices: [replay, hot]
airflow:
  owner: team
  tags: [gold]
  description: Orders of all shops
  retries: 7
  queue: spark
  priority: 5
  on_failure: ["alerts:page"]
"""
    dag = build_dag(load(pipeline_file("p", more=more)))
    assert (dag.owner, dag.description) == ("team", "Orders of all shops")
    assert {"gold", "sluice", "recovery:replay"} <= set(dag.tags)
    assert {(t.retries, t.queue, t.priority_weight) for t in dag.tasks} == {(7, "spark", 5)}
    (called,) = dag.on_failure_callback
    assert called.__name__ == "page"
    assert dag.on_success_callback is None
    assert dag.params.get_param("recovery").schema["enum"] == ["replay", "hot"]


def test_a_team_sets_when_its_dags_begin_who_may_see_them_and_who_gets_mail(
    pipeline_file: Callable[..., Path],
) -> None:
    more = """\
airflow:
  start_date: 2026-03-01
  access_control: {Analyst: [can_read], Team: [can_read, can_edit]}
  email: [team@example.org, lead@example.org]
  maintenance: manual
"""
    dags = build_all(pipeline_file("p", more=more).parent)
    assert dags["p"].start_date == datetime(2026, 3, 1, tzinfo=UTC)
    assert build_dag(pipeline_file("q")).start_date == datetime(2000, 1, 1, tzinfo=UTC)
    for dag in dags.values():
        assert dag.access_control == {
            "Analyst": {"DAGs": {"can_read"}}, "Team": {"DAGs": {"can_read", "can_edit"}},
        }  # fmt: skip
        (mail,) = dag.on_failure_callback
        assert mail.notifier.to == ["team@example.org", "lead@example.org"]
        assert mail.notifier.subject == "{{ sluice.subject }}"


def test_a_callback_that_cannot_be_called_is_an_import_error_of_its_file(
    pipeline_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mistakes.py").write_text("page = 'me'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = load(pipeline_file("p", more='airflow: {on_failure: ["mistakes:page"]}\n'))
    with pytest.raises(ConfigError, match="neither a function nor a notifier"):
        build_dag(spec)


def test_what_the_file_names_is_called_when_a_run_has_failed(
    pipeline_file: Callable[..., Path], spark: FakeSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pagers.py").write_text(
        "from pathlib import Path\n"
        f"def page(context):\n    Path({str(tmp_path / 'paged')!r}).write_text(context['dag_run'].run_id)\n"
        f"def cheer(context):\n    Path({str(tmp_path / 'cheered')!r}).touch()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    more = 'airflow: {retries: 0, on_failure: ["pagers:page"], on_success: ["pagers:cheer"]}\n'
    file = pipeline_file("paging", more=more)
    monkeypatch.setenv("SLUICE_PIPELINES", str(file.parent))  # for the DAG file that Airflow parses before the run
    full = Backlog("paging", (PartitionLag("paging", 0, 0, 0, 12),))
    monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", lambda *_, **__: full)
    dag = build_dag("paging")
    dag.get_task("ingest")._spark_binary = spark.binary
    spark.plan("bounded_run.py", code=21, say=["sluice: error: offsets are gone"])
    run = dag.test(logical_date=None)
    assert str(run.state) == "failed"
    assert (tmp_path / "paged").read_text() == run.run_id
    assert not (tmp_path / "cheered").exists()
