"""What operators are given is checked when Airflow reads the DAG; a template when it is rendered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ConfigError
from sluice.recovery import Recovery
from sluice_airflow.gate import OnIdle
from sluice_airflow.operators import clean, freshness, vacuum
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.clean import CleanOperator
from sluice_airflow.operators.freshness import FreshnessOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.vacuum import VacuumOperator
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

NO_DURATION = "is not a duration: write 30s, 15m, 2h or 7d"


@pytest.mark.parametrize(
    ("operator", "argument", "value", "told"),
    [
        (VacuumOperator, "older_than", "7 days", NO_DURATION),
        (VacuumOperator, "older_than", 7, "7 is a duration without a unit: write 7s, 7m, 7h or 7d"),
        (CleanOperator, "older_than", "a week", NO_DURATION),
        (FreshnessOperator, "max_age", "soon", NO_DURATION),
        (FreshnessOperator, "max_age", "", "it is empty"),
        (KafkaLagSensor, "on_idle", "skipp", "'skipp': did you mean 'skip'?"),
        (KafkaLagSensor, "max_age", "soon", NO_DURATION),
        (KafkaLagSensor, "max_records", "many", "max_records: expected a whole number, not 'many'"),
        (KafkaLagSensor, "match", "some", "match: expected 'any' or 'all', not 'some'"),
        (BoundedRunOperator, "recovery", "replai", "'replai': did you mean 'replay'?"),
        (BoundedRunOperator, "recovery", "quickly", "it may be one of: replay, wal, hot"),
        (BoundedRunOperator, "max_records_per_batch", 0, "0 is not a whole number of at least 1"),
        (BoundedRunOperator, "max_records_per_batch", "1e6", "'1e6' is not a whole number"),
        (RedriveOperator, "what", "loss", "did you mean 'lost'?"),
        (RedriveOperator, "ranges", ["orders:0:1"], "is not a range: write TOPIC:PARTITION:START-END"),
    ],
)
def test_nonsense_is_refused_when_the_dag_is_read(operator: Any, argument: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        operator(task_id="t", pipeline="p", **{argument: value})
    assert told in caught.value.what
    assert argument in caught.value.what


@pytest.mark.parametrize(
    ("operator", "argument"),
    [
        (VacuumOperator, "older_than"),
        (CleanOperator, "older_than"),
        (FreshnessOperator, "max_age"),
        (KafkaLagSensor, "on_idle"),
        (KafkaLagSensor, "max_age"),
        (BoundedRunOperator, "recovery"),
        (BoundedRunOperator, "max_records_per_batch"),
        (RedriveOperator, "what"),
        (RedriveOperator, "ranges"),
    ],
)
def test_a_template_is_not_judged_before_it_is_rendered(operator: Any, argument: str) -> None:
    task = operator(task_id="t", pipeline="p", **{argument: "{{ params.x }}"})
    assert argument in task.template_fields
    assert getattr(task, argument) == "{{ params.x }}"


@pytest.mark.parametrize(("value", "meant"), [("7d", timedelta(days=7)), (timedelta(3), timedelta(3)), ("", None)])
def test_a_duration_is_written_as_in_the_file(
    pipeline_file: Callable[..., Path],
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    value: Any,
    meant: timedelta | None,
) -> None:
    asked = []
    monkeypatch.setattr(vacuum, "vacuum", lambda *args, **_: asked.append(args[3]) or [])
    VacuumOperator(task_id="v", pipeline=str(pipeline_file()), older_than=value).execute(context())
    assert asked == [meant]

    def cleaned(*args: Any, **_: Any) -> Any:
        asked.append(args[3])
        return type("Cleaned", (), {"as_dict": lambda _: {"segments": 0, "records": 0, "bytes": 0}})()

    monkeypatch.setattr(clean, "clean_log", cleaned)
    CleanOperator(task_id="c", pipeline=str(pipeline_file()), older_than=value).execute(context())
    assert datetime.now(UTC) - asked[1] == pytest.approx(meant or timedelta(days=30), abs=timedelta(minutes=1))


def test_freshness_takes_it_too(
    pipeline_file: Callable[..., Path], context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def look(*_: Any, limits: dict[str, Any], **__: Any) -> Any:
        asked.append(limits)
        raise ConfigError("enough")

    monkeypatch.setattr(freshness, "look", look)
    with pytest.raises(ConfigError, match="enough"):
        FreshnessOperator(task_id="f", pipeline=str(pipeline_file()), max_age="2h").execute(context())
    assert asked == [{"max_age": timedelta(hours=2)}]


def test_what_a_template_rendered_to_is_refused_when_it_runs(
    pipeline_file: Callable[..., Path], context: Any, looks: Any
) -> None:
    task = KafkaLagSensor(task_id="w", pipeline=str(pipeline_file()), on_idle="{{ x }}")
    task.on_idle = "sometimes"
    with pytest.raises(ConfigError, match="'sometimes': it may be one of: proceed, wait, skip"):
        task.execute(context())
    run = BoundedRunOperator(task_id="r", pipeline=str(pipeline_file()), recovery="{{ x }}")
    run.recovery = "sometimes"
    with pytest.raises(ConfigError, match="'sometimes': it may be one of: replay, wal"):
        run.execute(context())


def test_members_and_names_are_the_same() -> None:
    assert KafkaLagSensor(task_id="a", pipeline="p", on_idle=OnIdle.SKIP).on_idle == "skip"
    assert BoundedRunOperator(task_id="b", pipeline="p", recovery=Recovery.WAL).recovery == "wal"
