"""The sensor, with a fake look at the broker."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from tests.airflow.conftest import SECRET, behind, unknown

from sluice.errors import AuthorizationError, ConfigError, LeaseHeldError, SluiceError, SourceUnreachableError
from sluice.lag import Limits, PartitionLag, Status
from sluice_airflow.gate import OnIdle
from sluice_airflow.last_words import words_of
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor
from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


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
    looks(behind(1, running="theirs"))
    with pytest.raises(LeaseHeldError, match="'theirs'"):
        sensor(deferrable=False, poke_interval=0, timeout=0).execute(context())


@pytest.mark.parametrize("deferrable", [True, False])
def test_who_waited_in_vain_says_for_what_and_what_to_do(
    sensor: Any, looks: Any, context: Any, deferrable: bool
) -> None:
    found, now = behind(1234), context()
    looks(replace(found, limits=Limits(5000)))
    task = sensor(deferrable=deferrable, max_records=5000, poke_interval=0, timeout=0)
    event = {"status": "timeout", "backlog": found.as_dict()}
    with pytest.raises(AirflowSensorTimeout) as caught:
        task.execute_complete(now, event) if deferrable else task.execute(now)
    told = str(caught.value)
    assert "1,234 records wait, and a run is due when there are more than 5,000 records" in told
    assert "data: nothing was read or written" in told
    assert "next: clear this task to wait again" in told
    assert words_of(caught.value)["what"] == told.splitlines()[0], "alerts say the same"


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
