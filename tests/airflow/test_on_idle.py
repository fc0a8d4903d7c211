"""``lag.on_idle``: what runs of a cron schedule do while too little waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException
from airflow.utils.types import DagRunType
from tests.airflow.conftest import FakeSpark

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag
from sluice.pipeline import load
from sluice_airflow.factory import build_dag
from sluice_airflow.gate import OnIdle
from sluice_airflow.sensors import kafka_lag as sensor_module
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

LITTLE = Backlog("demo", (PartitionLag("demo", 0, 0, 0, 5),), Limits(10))
HOURLY = 'schedule: {cron: "0 * * * *"}\n'


def with_on_idle(file: Path, on_idle: str) -> Path:
    file.write_text(file.read_text().replace("max_records: 10", f"max_records: 10, on_idle: {on_idle}"))
    return file


@pytest.fixture
def wait_for_lag(pipeline_file: Callable[..., Path]) -> Callable[..., KafkaLagSensor]:
    def make(in_file: str | None, run_type: str, **kwargs: Any) -> KafkaLagSensor:
        file = pipeline_file(more=HOURLY)
        dag = build_dag(with_on_idle(file, in_file) if in_file else file, **kwargs)
        sensor: KafkaLagSensor = dag.get_task("wait_for_lag")
        sensor.render_template_fields({"dag_run": SimpleNamespace(run_type=DagRunType(run_type)), "params": {}})
        return sensor

    return make


@pytest.mark.parametrize("run_type", ["scheduled", "manual", "backfill", "asset_triggered"])
@pytest.mark.parametrize("on_idle", [None, "proceed", "wait", "skip"])
def test_the_file_decides_for_runs_of_the_schedule(wait_for_lag: Any, on_idle: str | None, run_type: str) -> None:
    expected = on_idle if on_idle and run_type == "scheduled" else "proceed"
    assert wait_for_lag(on_idle, run_type).on_idle == expected


def test_who_builds_the_dag_decides_for_every_run(wait_for_lag: Any) -> None:
    assert wait_for_lag("wait", "manual", on_idle=OnIdle.SKIP).on_idle == "skip"


def test_a_scheduled_run_with_too_little_is_skipped(
    wait_for_lag: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: LITTLE)
    with pytest.raises(AirflowSkipException):
        wait_for_lag("skip", "scheduled").execute(context())
    wait_for_lag("skip", "manual").execute(context())


def test_one_that_waited_long_enough_is_skipped_and_a_silent_broker_is_a_failure(
    wait_for_lag: Any, context: Any
) -> None:
    def resume(sensor: KafkaLagSensor, event: dict[str, Any]) -> None:
        sensor.resume_execution("execute_complete", {"event": event}, context())

    timeout = {"status": "timeout", "backlog": LITTLE.as_dict(), "why": None}
    with pytest.raises(AirflowSkipException):
        resume(wait_for_lag("wait", "scheduled"), timeout)
    with pytest.raises(AirflowSensorTimeout):
        resume(wait_for_lag(None, "scheduled"), timeout)
    silent = {"status": "error", "code": 20, "what": "no broker answers", "state": "", "next_step": ""}
    with pytest.raises(SourceUnreachableError):
        resume(wait_for_lag("wait", "scheduled"), silent)


@pytest.mark.parametrize("schedule", ["schedule: on_lag\n", ""])
def test_it_is_for_a_cron_schedule(pipeline_file: Callable[..., Path], schedule: str) -> None:
    with pytest.raises(ConfigError, match="cron"):
        load(with_on_idle(pipeline_file(more=schedule), "skip"))


def test_airflow_knows_the_kind_of_a_run_by_these_names(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Backlog("flights", (PartitionLag("flights", 0, 12, 0, 12),))
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: nothing)
    dag = build_dag("flights")
    dag.get_task("wait_for_lag").on_idle = "{{ 'skip' if dag_run.run_type == 'manual' else 'proceed' }}"
    run = dag.test(logical_date=None)
    assert {str(ti.state) for ti in run.get_task_instances()} == {"skipped"}
    assert spark.call("bounded_run.py") is None
