"""The gate: sensor and trigger, with a fake look at the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.module_loading import import_string
from tests.airflow.conftest import SECRET

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.home import Home
from sluice.lag import Backlog, Limits, PartitionLag, Status
from sluice.pipeline import load
from sluice_airflow import gate
from sluice_airflow.gate import OnIdle
from sluice_airflow.sensors import kafka_lag as sensor_module
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor
from sluice_airflow.triggers import kafka_lag as trigger_module
from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

DOWN = SourceUnreachableError("no broker answers", state="untouched", next_step="start it")


def behind(records: int, *, position: int = 5, **more: Any) -> Backlog:
    return Backlog("demo", (PartitionLag("demo", 0, position, 0, position + records),), Limits(10), **more)


def unknown(error: SluiceError = DOWN) -> Backlog:
    return Backlog("demo", (), Limits(10), error)


class Looks:
    """Answers in turn; the last one again and again."""

    def __init__(self, *answers: Backlog | SluiceError) -> None:
        self.answers = list(answers)
        self.count = 0
        self.limits: Any = None

    def __call__(self, pipeline: str, settings: Any, *, limits: Any, timeout: float) -> Backlog:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        self.limits = limits
        if isinstance(answer, SluiceError):
            raise answer
        return answer


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Looks]:
    def use(*answers: Backlog | SluiceError) -> Looks:
        fake = Looks(*answers)
        monkeypatch.setattr(sensor_module, "look", fake)
        monkeypatch.setattr(trigger_module, "look", fake)
        return fake

    return use


@pytest.fixture
def sensor(pipeline_file: Callable[..., Path]) -> Callable[..., KafkaLagSensor]:
    def make(**kwargs: Any) -> KafkaLagSensor:
        kwargs = {"timeout": 60, "poke_interval": 1, **kwargs}
        return KafkaLagSensor(task_id="wait", pipeline=str(pipeline_file()), **kwargs)

    return make


# --- the sensor ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_idle", list(OnIdle))
def test_enough_is_enough_at_the_first_look(sensor: Any, looks: Any, context: Any, on_idle: OnIdle) -> None:
    looks(behind(11))
    sensor(on_idle=on_idle).execute(context())


def test_idle_proceeds_skips_or_waits(sensor: Any, looks: Any, context: Any) -> None:
    looks(behind(10))
    sensor(on_idle="proceed").execute(context())
    with pytest.raises(AirflowSkipException):
        sensor(on_idle="skip").execute(context())
    with pytest.raises(TaskDeferred):
        sensor(on_idle="wait").execute(context())


def test_what_only_a_run_can_report_starts_one(sensor: Any, looks: Any, context: Any) -> None:
    looks(behind(-3))
    sensor(on_idle="wait").execute(context())


def test_a_silent_broker_is_waited_for_in_the_triggerer(sensor: Any, looks: Any, context: Any) -> None:
    looks(unknown())
    with pytest.raises(TaskDeferred) as caught:
        sensor(on_idle="proceed").execute(context())
    trigger = caught.value.trigger
    assert isinstance(trigger, KafkaLagTrigger)
    assert trigger.kafka_conn_id == "kafka_default"
    assert trigger.deadline == pytest.approx(time.time() + 60, abs=5)
    assert caught.value.timeout.total_seconds() > 60  # the trigger's own deadline comes first: its message says more


@pytest.mark.parametrize("error", [AuthorizationError("refused"), ConfigError("no topic")])
@pytest.mark.parametrize("deferrable", [True, False])
def test_what_waiting_does_not_mend_fails_at_once(
    sensor: Any, looks: Any, context: Any, error: SluiceError, deferrable: bool
) -> None:
    fake = looks(unknown(error))
    with pytest.raises(type(error)):
        sensor(deferrable=deferrable).execute(context())
    assert fake.count == 1


def test_poking_waits_for_the_broker(sensor: Any, looks: Any, context: Any) -> None:
    fake = looks(unknown(), behind(0), behind(99))
    sensor(deferrable=False, poke_interval=0).execute(context())
    assert fake.count == 3


def test_poking_ends_with_the_type_of_what_it_waited_for(sensor: Any, looks: Any, context: Any) -> None:
    looks(unknown())
    with pytest.raises(SourceUnreachableError):
        sensor(deferrable=False, poke_interval=0, timeout=0).execute(context())
    looks(behind(1))
    with pytest.raises(AirflowSensorTimeout):
        sensor(deferrable=False, poke_interval=0, timeout=0).execute(context())


def test_rescheduling_keeps_the_timeout_over_its_pokes(
    sensor: Any, looks: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = sensor(deferrable=False, mode="reschedule", timeout=60)
    first: list[datetime | None] = [None]
    now = context()
    monkeypatch.setattr(type(now["ti"]), "get_first_reschedule_date", lambda *_: first[0], raising=False)
    looks(behind(1))
    with pytest.raises(AirflowRescheduleException):
        task.execute(now)
    first[0] = datetime.now(UTC) - timedelta(seconds=61)
    with pytest.raises(AirflowSensorTimeout):
        task.execute(now)
    looks(unknown())
    with pytest.raises(SourceUnreachableError):
        task.execute(now)
    looks(behind(11))
    task.execute(now)


def test_the_table_shows_each_partition(sensor: Any, looks: Any, context: Any, capfd: Any) -> None:
    looks(behind(1234))
    sensor().execute(context())
    log = capfd.readouterr().out
    assert "1,234" in log
    assert "partition" in log
    assert SECRET not in log


# --- the trigger ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trigger(pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., KafkaLagTrigger]:
    async def no_sleep(_seconds: float) -> None: ...

    monkeypatch.setattr(trigger_module.asyncio, "sleep", no_sleep)

    def make(on_idle: str = "wait", deadline: float | None = None) -> KafkaLagTrigger:
        return KafkaLagTrigger(
            pipeline=str(pipeline_file()),
            kafka_conn_id="kafka_default",
            on_idle=on_idle,
            poll_interval=5,
            broker_timeout=2,
            deadline=time.time() + 60 if deadline is None else deadline,
        )

    return make


def fire(trigger: KafkaLagTrigger) -> dict[str, Any]:
    async def all_events() -> list[Any]:
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(all_events())
    return dict(event.payload)


def test_the_trigger_can_be_made_again(trigger: Any) -> None:
    path, values = trigger(deadline=1.5).serialize()
    again = import_string(path)(**values)
    assert again.serialize() == (path, values)
    assert values["deadline"] == 1.5
    assert SECRET not in repr(values)


def test_it_fires_when_there_is_enough(trigger: Any, looks: Any, sensor: Any, context: Any) -> None:
    fake = looks(behind(1), unknown(), behind(50))
    event = fire(trigger())
    assert (event["status"], event["backlog"]["lag"], fake.count) == ("proceed", 50, 3)
    sensor().execute_complete(context(), event)


def test_a_broker_that_is_back_ends_an_idle_wait(trigger: Any, looks: Any, sensor: Any, context: Any) -> None:
    looks(unknown(), unknown(), behind(0))
    assert fire(trigger("proceed"))["status"] == "proceed"
    looks(unknown(), behind(0))
    event = fire(trigger("skip"))
    with pytest.raises(AirflowSkipException):
        sensor().execute_complete(context(), event)


def test_a_broker_that_stays_silent_is_a_typed_failure(trigger: Any, looks: Any, sensor: Any, context: Any) -> None:
    looks(unknown())
    event = fire(trigger(deadline=0))
    with pytest.raises(SourceUnreachableError, match="no broker answers") as caught:
        sensor().execute_complete(context(), event)
    assert caught.value.next_step == "start it"


def test_too_little_for_too_long_is_a_timeout(trigger: Any, looks: Any, sensor: Any, context: Any) -> None:
    looks(behind(3))
    event = fire(trigger(deadline=0))
    with pytest.raises(AirflowSensorTimeout):
        sensor().execute_complete(context(), event)


@pytest.mark.parametrize(
    "answer", [unknown(AuthorizationError("refused")), unknown(ConfigError("no topic")), SluiceError("ledger")]
)
def test_the_trigger_gives_up_at_once_too(
    trigger: Any, looks: Any, sensor: Any, context: Any, answer: Backlog | SluiceError
) -> None:
    fake = looks(answer)
    event = fire(trigger())
    assert fake.count == 1
    with pytest.raises(type(answer if isinstance(answer, SluiceError) else answer.error)):
        sensor().execute_complete(context(), event)


def test_a_missing_connection_is_an_event_and_not_a_crash(
    trigger: Any, looks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    looks(behind(50))
    assert fire(trigger())["code"] == 10


# --- holding, and limits of one's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("on_idle", list(OnIdle))
def test_a_run_at_work_is_waited_for(sensor: Any, looks: Any, context: Any, on_idle: OnIdle) -> None:
    for waiting in (0, 99):
        looks(behind(waiting, running="theirs"))
        with pytest.raises(TaskDeferred):
            sensor(on_idle=on_idle).execute(context())


def test_who_does_not_hold_goes_on_beside_it(sensor: Any, looks: Any, context: Any) -> None:
    looks(behind(99, running="theirs"))
    sensor(hold_while_running=False).execute(context())
    looks(behind(0, running="theirs"))
    with pytest.raises(AirflowSkipException):
        sensor(hold_while_running=False, on_idle="skip").execute(context())


def test_the_trigger_holds_too_and_names_the_run_at_its_end(
    trigger: Any, looks: Any, sensor: Any, context: Any
) -> None:
    fake = looks(behind(99, running="theirs"), behind(99))
    assert (fire(trigger())["status"], fake.count) == ("proceed", 2)
    looks(behind(99, running="theirs"))
    event = fire(trigger("proceed", deadline=0))
    with pytest.raises(AirflowSensorTimeout, match="theirs"):
        sensor().execute_complete(context(), event)


def test_what_is_partly_unknown_is_unknown(sensor: Any, looks: Any, context: Any) -> None:
    silent = PartitionLag("demo", 1, 5, None, None, error="no leader")
    looks(replace(behind(99), partitions=(*behind(99).partitions, silent)))
    with pytest.raises(TaskDeferred):
        sensor(on_idle="proceed").execute(context())


def test_a_topic_that_was_made_again_is_for_a_run_to_report(sensor: Any, looks: Any, context: Any) -> None:
    again = PartitionLag("demo", 1, 5, None, None, signs=frozenset({Status.RECREATED}))
    looks(replace(behind(0), partitions=(*behind(0).partitions, again)))
    sensor(on_idle="wait").execute(context())


def test_the_tasks_own_limits_reach_the_look_and_the_trigger(sensor: Any, looks: Any, context: Any) -> None:
    fake = looks(behind(1))
    task = sensor(max_records="7", max_age=timedelta(minutes=15), max_retention_share=" ", match="None")
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context())
    assert fake.limits == {"max_records": "7", "max_age": 900.0}
    assert caught.value.trigger.serialize()[1]["limits"] == fake.limits


def test_the_limits_are_templated() -> None:
    assert {"max_records", "max_age", "max_retention_share", "match", "on_idle"} <= set(KafkaLagSensor.template_fields)


@pytest.mark.parametrize(
    ("instead", "limits"),
    [
        ({}, Limits(10)),
        ({"max_records": "7"}, Limits(7)),
        ({"max_age": "15m"}, Limits(10, timedelta(minutes=15))),
        ({"max_age": 900.0, "match": "all"}, Limits(10, timedelta(minutes=15), match="all")),
        ({"max_retention_share": "0.5"}, Limits(10, max_retention_share=0.5)),
    ],
)
def test_an_argument_stands_in_for_the_files_limit(
    pipeline_file: Callable[..., Path], instead: dict[str, Any], limits: Limits
) -> None:
    assert gate.limits_of(load(pipeline_file()), instead) == limits


@pytest.mark.parametrize("wrong", [{"max_records": -1}, {"max_age": "soon"}, {"match": "some"}, {"max_recrods": 1}])
def test_a_limit_that_is_none_is_a_configuration_error(
    pipeline_file: Callable[..., Path], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        gate.limits_of(load(pipeline_file()), wrong)


# --- the look ------------------------------------------------------------------------------------------------------


def test_the_look_takes_limits_home_and_ledger_from_their_owners(
    pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def fake(pipeline: Any, cluster: Any, *, home: Any, ledger: Any, limits: Any) -> Backlog:
        seen.append((pipeline.name, cluster.timeout, home, ledger.epoch("demo").number, limits))
        return behind(1)

    monkeypatch.setattr(gate, "backlog", fake)
    found = gate.look(str(pipeline_file()), object(), limits={"max_records": 3}, timeout=4)  # type: ignore[arg-type]
    assert (found.records, seen) == (1, [("demo", 4, Home.from_env(), 1, Limits(3))])
