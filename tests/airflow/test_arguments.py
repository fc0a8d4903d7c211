"""Arguments of operators are checked when Airflow reads the DAG; a template when it is rendered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.errors import ConfigError
from sluice.recovery import Recovery
from sluice_airflow.arguments import count_of
from sluice_airflow.gate import OnIdle
from sluice_airflow.operators import clean, freshness, vacuum
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.clean import CleanOperator
from sluice_airflow.operators.freshness import FreshnessOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.vacuum import VacuumOperator
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.mark.parametrize(
    ("kind", "argument", "value", "token"),
    [
        (VacuumOperator, "older_than", "7 days", "7d"),
        (VacuumOperator, "older_than", 7, "7d"),
        (CleanOperator, "older_than", "a week", "7d"),
        (FreshnessOperator, "max_age", "soon", "7d"),
        (FreshnessOperator, "max_age", "", "empty"),
        (KafkaLagSensor, "on_idle", "skipp", "'skip'"),
        (KafkaLagSensor, "max_age", "soon", "7d"),
        (KafkaLagSensor, "max_records", "many", "'many'"),
        (KafkaLagSensor, "match", "some", "'any'"),
        (BoundedRunOperator, "recovery", "replai", "'replay'"),
        (BoundedRunOperator, "recovery", "quickly", "replay, wal, hot"),
        (BoundedRunOperator, "max_records_per_batch", 0, "at least 1"),
        (BoundedRunOperator, "max_records_per_batch", "1e6", "'1e6'"),
        (RedriveOperator, "what", "loss", "'lost'"),
        (RedriveOperator, "ranges", ["orders:0:1"], "TOPIC:PARTITION:START-END"),
    ],
)
def test_operator_argument_is_refused_when_the_dag_is_read_and_a_template_is_not(
    kind: Any, argument: str, value: Any, token: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(task_id="t", pipeline="p", **{argument: value})
    assert token in caught.value.what
    assert argument in caught.value.what
    task = kind(task_id="t", pipeline="p", **{argument: "{{ params.x }}"})
    assert argument in task.template_fields
    assert getattr(task, argument) == "{{ params.x }}"


def test_whole_number_may_be_written_as_a_fraction() -> None:
    assert (count_of("n", 5.0), count_of("n", "7"), count_of("n", "")) == (5, 7, None)
    with pytest.raises(ConfigError):
        count_of("n", 5.5)


def test_operator_argument_is_refused_once_its_template_is_rendered(pipeline_file: Any, context: Any) -> None:
    for kind, argument, choice in (
        (KafkaLagSensor, "on_idle", "proceed"),
        (BoundedRunOperator, "recovery", "replay"),
        (BoundedRunOperator, "driver_memory", "memory"),
    ):
        task = kind(task_id="t", pipeline=str(pipeline_file()), **{argument: "{{ x }}"})
        setattr(task, argument, "sometimes")
        with pytest.raises(ConfigError) as caught:
            task.execute(context())
        assert "sometimes" in caught.value.what
        assert choice in caught.value.what


@pytest.mark.parametrize(("value", "meant"), [("7d", timedelta(days=7)), (timedelta(3), timedelta(3)), ("", None)])
def test_operator_durations_are_written_as_in_the_pipeline_file(
    pipeline_file: Any, context: Any, monkeypatch: pytest.MonkeyPatch, value: Any, meant: timedelta | None
) -> None:
    asked: list[Any] = []

    def cleaned(*args: Any, **_: Any) -> Any:
        asked.append(args[3])
        return type("Cleaned", (), {"as_dict": lambda _: {"segments": 0, "records": 0, "bytes": 0}})()

    def look(*_: Any, limits: dict[str, Any], **__: Any) -> Any:
        asked.append(limits["max_age"])
        raise ConfigError("enough")

    monkeypatch.setattr(vacuum, "vacuum", lambda *args, **_: asked.append(args[3]) or [])
    monkeypatch.setattr(clean, "clean_log", cleaned)
    monkeypatch.setattr(freshness, "look", look)
    file = str(pipeline_file())
    VacuumOperator(task_id="v", pipeline=file, older_than=value).execute(context())
    CleanOperator(task_id="c", pipeline=file, older_than=value).execute(context())
    with pytest.raises(ConfigError):
        FreshnessOperator(task_id="f", pipeline=file, max_age=value or "2h").execute(context())
    assert (asked[0], asked[2]) == (meant, meant or timedelta(hours=2))
    assert datetime.now(UTC) - asked[1] == pytest.approx(meant or timedelta(days=30), abs=timedelta(minutes=1))


def test_operator_takes_members_of_enumerations_as_their_names() -> None:
    assert KafkaLagSensor(task_id="a", pipeline="p", on_idle=OnIdle.SKIP).on_idle == "skip"
    assert BoundedRunOperator(task_id="b", pipeline="p", recovery=Recovery.WAL).recovery == "wal"
