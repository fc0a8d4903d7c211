"""The sensor, whether it pokes or defers to its trigger, with a fake look at the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.module_loading import import_string
from airflow.utils.types import DagRunType
from tests.airflow.conftest import SECRET, behind, unknown

from sluice.errors import AuthorizationError, ConfigError, LeaseHeldError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag, Status
from sluice_airflow.factory import build_dag
from sluice_airflow.failure_message import words_of
from sluice_airflow.gate import OnIdle
from sluice_airflow.sensors.kafka_lag import KafkaLagSensor
from sluice_airflow.triggers.kafka_lag import KafkaLagTrigger

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


class Looks:
    """Answers in turn; the last one again and again."""

    def __init__(self, *answers: Backlog | SluiceError) -> None:
        self.answers = answers
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
    """Let sensor and trigger see these backlogs, in turn."""

    async def no_sleep(_seconds: float) -> None: ...

    monkeypatch.setattr("sluice_airflow.triggers.kafka_lag.asyncio.sleep", no_sleep)

    def use(*answers: Backlog | SluiceError) -> Looks:
        fake = Looks(*answers)
        monkeypatch.setattr("sluice_airflow.sensors.kafka_lag.look", fake)
        monkeypatch.setattr("sluice_airflow.triggers.kafka_lag.look", fake)
        return fake

    return use


@pytest.fixture
def sensor(pipeline_file: Any) -> Callable[..., KafkaLagSensor]:
    """Make the sensor of a small pipeline."""

    def make(**kwargs: Any) -> KafkaLagSensor:
        kwargs = {"timeout": 60, "poke_interval": 0, **kwargs}
        return KafkaLagSensor(task_id="wait", pipeline=str(pipeline_file()), **kwargs)

    return make


def deferred(sensor: KafkaLagSensor, context: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(context)
    return caught.value


def fire(trigger: KafkaLagTrigger) -> dict[str, Any]:
    async def all_events() -> list[Any]:
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(all_events())
    return dict(event.payload)


def wait(sensor: KafkaLagSensor, context: Any) -> None:
    """Let a sensor wait, in the triggerer too, until it knows."""
    try:
        sensor.execute(context)
    except TaskDeferred as waits:
        sensor.execute_complete(context, fire(waits.trigger))


PART = PartitionLag("demo", 1, 5, None, None, error="no leader")
RECREATED = PartitionLag("demo", 1, 5, None, None, signs=frozenset({Status.RECREATED}))
AT_WORK = {"running": "theirs"}


def with_part(found: Backlog, part: PartitionLag) -> Backlog:
    return replace(found, partitions=(*found.partitions, part))


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "defer"])
@pytest.mark.parametrize(
    ("answers", "arguments", "raises", "count"),
    [
        *(([behind(11)], {"on_idle": on_idle}, None, 1) for on_idle in OnIdle),
        ([behind(10)], {"on_idle": "proceed"}, None, 1),
        ([behind(10)], {"on_idle": "skip"}, AirflowSkipException, 1),
        ([behind(10), behind(11)], {"on_idle": "wait"}, None, 2),
        ([behind(1)], {"timeout": 0}, AirflowSensorTimeout, 2),
        # what only a run can report
        ([behind(-3)], {}, None, 1),
        ([with_part(behind(0), RECREATED)], {}, None, 1),
        # a broker that is silent, in part or for a while
        ([unknown(), behind(0), behind(99)], {}, None, 3),
        ([unknown(), unknown(), behind(0)], {"on_idle": "proceed"}, None, 3),
        ([unknown(), behind(0)], {"on_idle": "skip"}, AirflowSkipException, 2),
        ([with_part(behind(99), PART), behind(99)], {"on_idle": "proceed"}, None, 2),
        ([unknown()], {"timeout": 0}, SourceUnreachableError, 2),
        # waiting does not mend it
        ([unknown(AuthorizationError("refused"))], {}, AuthorizationError, 1),
        ([unknown(ConfigError("no topic"))], {}, ConfigError, 1),
        ([SluiceError("ledger")], {}, SluiceError, 1),
        ([unknown(), unknown(ConfigError("no topic"))], {}, ConfigError, 2),
        ([unknown(), SluiceError("ledger")], {}, SluiceError, 2),
        # a run is active
        *(([behind(n, **AT_WORK), behind(99)], {"on_idle": i}, None, 2) for i in OnIdle for n in (0, 99)),
        ([behind(99, **AT_WORK)], {"timeout": 0}, LeaseHeldError, 2),
        ([behind(99, **AT_WORK)], {"hold_while_running": False}, None, 1),
        ([behind(0, **AT_WORK)], {"hold_while_running": False, "on_idle": "skip"}, AirflowSkipException, 1),
    ],
)
def test_sensor_ends_by_what_it_sees(
    sensor: Any, looks: Any, context: Any, answers: Any, arguments: Any, raises: Any, count: int, deferrable: bool
) -> None:
    fake = looks(*answers)
    task = sensor(deferrable=deferrable, **arguments)
    if raises is None:
        wait(task, context())
    else:
        with pytest.raises(raises) as caught:
            wait(task, context())
        if raises is LeaseHeldError:
            assert "'theirs'" in str(caught.value)
        if raises is SourceUnreachableError:
            assert caught.value.next_step == "start it"
    assert fake.count == count if "timeout" not in arguments else fake.count <= count


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "defer"])
def test_sensor_that_waited_in_vain_names_its_limit(sensor: Any, looks: Any, context: Any, deferrable: bool) -> None:
    looks(replace(behind(1234), limits=Limits(5000)))
    with pytest.raises(AirflowSensorTimeout) as caught:
        wait(sensor(deferrable=deferrable, max_records=5000, timeout=0), context())
    lines = str(caught.value).splitlines()
    assert [token for token in ("1,234", "5,000") if token not in lines[0]] == []
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["data", "next"]
    assert words_of(caught.value)["what"] == lines[0], "alerts say the same"


def test_sensor_hands_the_trigger_its_deadline_limits_and_connection(sensor: Any, looks: Any, context: Any) -> None:
    fake = looks(behind(1))
    limits = {"max_records": "7", "max_age": timedelta(minutes=15), "max_retention_share": " ", "match": "None"}
    waits = deferred(sensor(**limits), context())
    trigger = waits.trigger
    assert isinstance(trigger, KafkaLagTrigger)
    assert trigger.kafka_conn_id == "kafka_default"
    assert trigger.deadline == pytest.approx(time.time() + 60, abs=5)
    assert waits.timeout.total_seconds() > 60, "the trigger's own deadline comes first: its message says more"
    path, values = trigger.serialize()
    assert fake.limits == values["limits"] == {"max_records": "7", "max_age": 900.0}
    assert import_string(path)(**values).serialize() == (path, values)
    assert SECRET not in repr(values)
    assert set(limits) | {"on_idle"} <= set(KafkaLagSensor.template_fields)


def test_trigger_sends_an_event_when_its_connection_is_missing(
    sensor: Any, looks: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks(behind(1))
    trigger = deferred(sensor(), context()).trigger
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    assert fire(trigger)["code"] == 10


def test_rescheduling_sensor_keeps_its_timeout_over_its_pokes(
    sensor: Any, looks: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = sensor(deferrable=False, mode="reschedule", poke_interval=1)
    first: list[datetime | None] = [None]
    here = context()
    monkeypatch.setattr(type(here["ti"]), "get_first_reschedule_date", lambda *_: first[0], raising=False)
    looks(behind(1))
    with pytest.raises(AirflowRescheduleException):
        task.execute(here)
    first[0] = datetime.now(UTC) - timedelta(seconds=61)
    for answer, error in ((behind(1), AirflowSensorTimeout), (unknown(), SourceUnreachableError)):
        looks(answer)
        with pytest.raises(error):
            task.execute(here)
    looks(behind(11))
    task.execute(here)


def test_sensor_logs_a_table_of_partitions(sensor: Any, looks: Any, context: Any, capfd: Any) -> None:
    looks(behind(1234))
    sensor().execute(context())
    log = capfd.readouterr().out
    assert "1,234" in log
    assert "partition" in log
    assert SECRET not in log


LITTLE = Backlog("demo", (PartitionLag("demo", 0, 0, 0, 5),), Limits(10))


@pytest.fixture
def wait_for_lag(pipeline_file: Any) -> Callable[..., KafkaLagSensor]:
    def make(in_file: str | None, run_type: str, **kwargs: Any) -> KafkaLagSensor:
        file = pipeline_file(more='schedule: {cron: "0 * * * *"}\n')
        if in_file:
            file.write_text(file.read_text().replace("max_records: 10", f"max_records: 10, on_idle: {in_file}"))
        sensor: KafkaLagSensor = build_dag(file, **kwargs).get_task("wait_for_lag")
        sensor.render_template_fields({"dag_run": SimpleNamespace(run_type=DagRunType(run_type)), "params": {}})
        return sensor

    return make


@pytest.mark.parametrize("run_type", ["scheduled", "manual", "backfill", "asset_triggered"])
@pytest.mark.parametrize("on_idle", [None, "proceed", "wait", "skip"])
def test_sensor_takes_on_idle_of_the_file_for_runs_of_the_schedule(
    wait_for_lag: Any, on_idle: str | None, run_type: str
) -> None:
    expected = on_idle if on_idle and run_type == "scheduled" else "proceed"
    assert wait_for_lag(on_idle, run_type).on_idle == expected
    assert wait_for_lag("wait", run_type, on_idle=OnIdle.SKIP).on_idle == "skip", "who builds the DAG decides"


def test_sensor_skips_a_scheduled_run_when_little_waits_and_fails_when_the_broker_is_silent(
    wait_for_lag: Any, looks: Any, context: Any
) -> None:
    looks(LITTLE)
    with pytest.raises(AirflowSkipException):
        wait_for_lag("skip", "scheduled").execute(context())
    wait_for_lag("skip", "manual").execute(context())

    def resume(on_idle: str | None, event: dict[str, Any]) -> None:
        task = wait_for_lag(on_idle, "scheduled")
        task.resume_execution("execute_complete", {"event": event}, context())

    timeout = {"status": "timeout", "backlog": LITTLE.as_dict(), "why": None}
    silent = {"status": "error", "code": 20, "what": "no broker answers", "state": "", "next_step": ""}
    for on_idle, event, error in (
        ("wait", timeout, AirflowSkipException),
        (None, timeout, AirflowSensorTimeout),
        ("wait", silent, SourceUnreachableError),
    ):
        with pytest.raises(error):
            resume(on_idle, event)
