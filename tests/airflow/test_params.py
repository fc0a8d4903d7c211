"""The fields of the trigger form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import DAG
from tests.airflow.conftest import FakeSpark

from sluice.lag import Backlog, PartitionLag
from sluice.recovery import Recovery
from sluice_airflow.factory import build_dag
from sluice_airflow.sensors import kafka_lag as sensor_module

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_the_form_has_types_and_the_files_values(pipeline_file: Callable[..., Path]) -> None:
    dag = build_dag(pipeline_file())
    assert dag.params.dump() == {
        "mode": "auto", "start": None, "end": None, "reason": None,
        "recovery": "replay", "max_records_per_batch": 1000, "validate": True,
    }  # fmt: skip
    recovery = dag.params.get_param("recovery").schema
    assert recovery["enum"] == [r.value for r in Recovery]
    assert set(recovery["values_display"]) == set(recovery["enum"])
    for name, bad in (
        ("recovery", "hope"), ("max_records_per_batch", 0), ("validate", "yes"), ("mode", "sideways"),
        ("start", "soon"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"Invalid input|is not|less than|does not match"):
            build_dag(pipeline_file()).params.get_param(name).resolve(bad)


def test_the_form_offers_only_what_the_pipeline_supports(pipeline_file: Callable[..., Path]) -> None:
    dag = build_dag(pipeline_file(more="rows: aggregate\n"))
    assert {"start", "end"}.isdisjoint(dag.params.dump())
    assert dag.params.get_param("mode").schema["enum"] == ["auto", "available_now"]
    assert "ignore_batch" not in dag.params.get_param("recovery").schema["enum"]
    assert "cannot reprocess intervals" in dag.doc_md


def test_every_strategy_is_explained() -> None:
    assert all(r.promise for r in Recovery)


@pytest.fixture
def dag(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> DAG:
    """The project's own DAG, with the fake spark-submit and a broker that has a little."""
    state = Backlog("flights", (PartitionLag("flights", 0, 0, 0, 12),))
    monkeypatch.setattr(sensor_module, "look", lambda *_, **__: state)
    dag = build_dag("flights")
    for task in ("ingest", "validate"):
        dag.get_task(task)._spark_binary = spark.binary
    return dag


def test_the_interval_of_a_pipeline_with_windows_is_of_event_time(pipeline_file: Callable[..., Path]) -> None:
    window = "window: {time: _timestamp, size: 1h, watermark: 1h, aggregates: {n: count(*)}}\n"
    params = build_dag(pipeline_file(more=window)).params
    assert "interval" in params.get_param("mode").schema["enum"]
    assert "of event time" in params.get_param("mode").schema["description_md"]
    assert "of record time" in build_dag(pipeline_file("other")).params.get_param("mode").schema["description_md"]
    sessions = build_dag(pipeline_file("third", more=window.replace("size: 1h", "gap: 10m, by: [id]"))).params
    assert "interval" in sessions.get_param("mode").schema["enum"]
    complete = window.replace("watermark: 1h", "output: complete")
    whole = build_dag(pipeline_file("fourth", more=complete)).params
    assert "interval" not in whole.get_param("mode").schema["enum"]
    assert "start" not in whole
