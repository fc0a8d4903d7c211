"""The trigger that waits for the sensor, with a fake look at the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow.sdk.module_loading import import_string
from tests.airflow.conftest import SECRET, behind, unknown

from sluice.errors import AuthorizationError, ConfigError, LeaseHeldError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog
from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


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


def test_the_trigger_holds_too_and_names_the_run_at_its_end(
    trigger: Any, looks: Any, sensor: Any, context: Any
) -> None:
    fake = looks(behind(99, running="theirs"), behind(99))
    assert (fire(trigger())["status"], fake.count) == ("proceed", 2)
    looks(behind(99, running="theirs"))
    event = fire(trigger("proceed", deadline=0))
    with pytest.raises(LeaseHeldError, match="theirs"):
        sensor().execute_complete(context(), event)
