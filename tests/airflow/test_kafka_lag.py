"""The gate: sensor and trigger, with a fake look at the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.module_loading import import_string
from tests.airflow.conftest import SECRET

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog, PartitionLag
from sluice_airflow import gate
from sluice_airflow.gate import OnIdle
from sluice_airflow.sensors import kafka_lag as sensor_module
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor
from sluice_airflow.triggers import kafka_lag as trigger_module
from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

DOWN = SourceUnreachableError("no broker answers", state="untouched", next_step="start it")


def behind(records: int, *, position: int = 5) -> Backlog:
    return Backlog("demo", (PartitionLag("demo", 0, position, 0, position + records),))


class Looks:
    """Answers in turn; the last one again and again."""

    def __init__(self, *answers: Backlog | SluiceError) -> None:
        self.answers = list(answers)
        self.count = 0

    def __call__(self, pipeline: str, settings: Any, *, timeout: float) -> tuple[Backlog, int]:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        if isinstance(answer, SluiceError):
            raise answer
        return answer, 10


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
    looks(DOWN)
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
    fake = looks(error)
    with pytest.raises(type(error)):
        sensor(deferrable=deferrable).execute(context())
    assert fake.count == 1


def test_poking_waits_for_the_broker(sensor: Any, looks: Any, context: Any) -> None:
    fake = looks(DOWN, behind(0), behind(99))
    sensor(deferrable=False, poke_interval=0).execute(context())
    assert fake.count == 3


def test_poking_ends_with_the_type_of_what_it_waited_for(sensor: Any, looks: Any, context: Any) -> None:
    looks(DOWN)
    with pytest.raises(SourceUnreachableError):
        sensor(deferrable=False, poke_interval=0, timeout=0).execute(context())
    looks(behind(1))
    with pytest.raises(AirflowSensorTimeout):
        sensor(deferrable=False, poke_interval=0, timeout=0).execute(context())


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
    fake = looks(behind(1), DOWN, behind(50))
    event = fire(trigger())
    assert (event["status"], event["backlog"]["lag"], fake.count) == ("proceed", 50, 3)
    sensor().execute_complete(context(), event)


def test_a_broker_that_is_back_ends_an_idle_wait(trigger: Any, looks: Any, sensor: Any, context: Any) -> None:
    looks(DOWN, DOWN, behind(0))
    assert fire(trigger("proceed"))["status"] == "proceed"
    looks(DOWN, behind(0))
    event = fire(trigger("skip"))
    with pytest.raises(AirflowSkipException):
        sensor().execute_complete(context(), event)


def test_a_broker_that_stays_silent_is_a_typed_failure(trigger: Any, looks: Any, sensor: Any, context: Any) -> None:
    looks(DOWN)
    event = fire(trigger(deadline=0))
    with pytest.raises(SourceUnreachableError, match="no broker answers") as caught:
        sensor().execute_complete(context(), event)
    assert caught.value.next_step == "start it"


def test_too_little_for_too_long_is_a_timeout(trigger: Any, looks: Any, sensor: Any, context: Any) -> None:
    looks(behind(3))
    event = fire(trigger(deadline=0))
    with pytest.raises(AirflowSensorTimeout):
        sensor().execute_complete(context(), event)


@pytest.mark.parametrize("error", [AuthorizationError("refused"), ConfigError("no topic"), SluiceError("ledger")])
def test_the_trigger_gives_up_at_once_too(
    trigger: Any, looks: Any, sensor: Any, context: Any, error: SluiceError
) -> None:
    fake = looks(error)
    event = fire(trigger())
    assert fake.count == 1
    with pytest.raises(type(error)):
        sensor().execute_complete(context(), event)


def test_a_missing_connection_is_an_event_and_not_a_crash(
    trigger: Any, looks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    looks(behind(50))
    assert fire(trigger())["code"] == 10


# --- the look ------------------------------------------------------------------------------------------------------


def test_the_look_takes_limit_and_epoch_from_their_owners(
    pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def fake(pipeline: Any, cluster: Any, *, home: Any, ledger: Any) -> Backlog:
        seen.append((pipeline.name, cluster.timeout, ledger.epoch("demo").number))
        return behind(1)

    monkeypatch.setattr(gate, "backlog", fake)
    found, limit = gate.look(str(pipeline_file()), object(), timeout=4)  # type: ignore[arg-type]
    assert (found.records, limit, seen) == (1, 10, [("demo", 4, 1)])
