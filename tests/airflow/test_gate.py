"""The look at a backlog: its limits, its ledger, the metrics that it sends, and the check of freshness by it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from tests.airflow.conftest import DOWN, FakeSpark, account_for, behind, states, unknown

from sluice.connections import Connection
from sluice.errors import ConfigError, SourceUnreachableError
from sluice.home import Home
from sluice.lag import Backlog, Limits, PartitionLag
from sluice.pipeline import load
from sluice_airflow import gate
from sluice_airflow.operators.freshness import FreshnessOperator
from sluice_airflow.triggers.lag_watcher import _Lookout

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

BROKER = Connection("kafka_default", "kafka", extra={"bootstrap.servers": "broker:9092"})


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
def test_lag_limit_of_an_argument_stands_in_for_the_files(
    pipeline_file: Any, instead: dict[str, Any], limits: Limits
) -> None:
    assert gate.limits_of(load(pipeline_file()), instead) == limits


@pytest.mark.parametrize("wrong", [{"max_records": -1}, {"max_age": "soon"}, {"match": "some"}, {"max_recrods": 1}])
def test_lag_limit_that_is_wrong_is_a_configuration_error(pipeline_file: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        gate.limits_of(load(pipeline_file()), wrong)


def test_lag_look_takes_limits_home_and_ledger_from_their_owners(
    pipeline_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def fake(pipeline: Any, cluster: Any, *, home: Any, ledger: Any, limits: Any) -> Backlog:
        seen.append((pipeline.name, cluster.timeout, home, ledger.offsets.epoch("demo").number, limits))
        return behind(1)

    monkeypatch.setattr(gate, "backlog", fake)
    found = gate.look(str(pipeline_file()), BROKER, limits={"max_records": 3}, timeout=4)
    assert (found.records, seen) == (1, [("demo", 4, Home.from_env(), 1, Limits(3))])


def waiting(records: int, age: float, **more: Any) -> Backlog:
    return Backlog("demo", (PartitionLag("demo", 0, 5, 0, 5 + records, age),), Limits(10), **more)


@pytest.mark.parametrize(
    ("found", "age", "tokens"),
    [
        (waiting(100, 7199.0), 7199.0, ()),
        (waiting(0, 0.0), 0.0, ()),
        (waiting(100, 10800.0), AirflowFailException, ("3 h", "100 records")),
        (waiting(100, 10800.0, running="r"), AirflowFailException, ("'r'",)),
        (unknown(DOWN), SourceUnreachableError, ("no broker answers",)),
        (Backlog("demo", (PartitionLag("demo", 0, 10**9, 0, 105),)), AirflowFailException, ("recreated",)),
    ],
)
def test_freshness_fails_for_a_record_too_old_or_an_answer_missing(
    pipeline_file: Any, context: Any, backlog: Any, found: Backlog, age: Any, tokens: tuple[str, ...]
) -> None:
    backlog(found)
    operator = FreshnessOperator(task_id="fresh", pipeline=str(pipeline_file()), max_age=timedelta(hours=2))
    if isinstance(age, float):
        assert operator.execute(context()) == age
    else:
        with pytest.raises(age) as caught:
            operator.execute(context())
        assert [token for token in tokens if token not in str(caught.value)] == []


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], set[str]]]:
    """Airflow's own StatsD client, as a task has it, and a server: what arrived since the last call, of Sluice's."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.setblocking(False)
    for name, value in (("ON", "True"), ("HOST", "127.0.0.1"), ("PORT", str(server.getsockname()[1]))):
        monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", value)
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)

    def drain() -> set[str]:
        found = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                found.add(server.recv(4096).decode())
        return {line for line in found if ".sluice." in line}

    yield drain
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    server.close()


def test_metrics_of_a_look_have_the_lag_and_nothing_where_it_is_unknown(
    pipeline_file: Any, arrived: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, waits = str(pipeline_file()), {"airflow.sluice.lag.demo:7|g", "airflow.sluice.lag_age.demo:0|g"}
    monkeypatch.setattr("sluice_airflow.gate.backlog", lambda *_, **__: behind(7))
    monkeypatch.setattr("sluice_airflow.triggers.lag_watcher.backlogs", lambda *_, **__: {"demo": behind(7)})
    gate.look(file, BROKER)
    assert arrived() == waits
    assert set(_Lookout(1.0).look([file], BROKER, 1.0)) == {file}
    assert arrived() == waits
    monkeypatch.setattr("sluice_airflow.gate.backlog", lambda *_, **__: unknown(DOWN))
    gate.look(file, BROKER)
    assert arrived() == set()


def test_metrics_of_a_run_have_its_written_records_verdict_and_losses_once(
    dag: DAG, spark: FakeSpark, arrived: Any
) -> None:
    spark.plan("run", written=[12], verdict="warned")
    account_for((100, 103), part="lost", pipeline="flights", run="earlier")
    dag.test(logical_date=None)
    assert arrived() >= {
        "airflow.sluice.written.flights:12|c",
        "airflow.sluice.verdict.flights.warned:1|c",
        "airflow.sluice.lost.flights:3|g",
    }
    spark.plan("run", verdict="empty")
    assert set(states(dag.test(logical_date=None)).values()) == {"success"}, "also with nothing to read"
    assert not any(".written." in line for line in arrived()), "each offset counts once"
