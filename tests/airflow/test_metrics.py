"""What arrives at a StatsD server."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from tests.airflow.conftest import DOWN, FakeSpark, behind, unknown

from sluice.ledger import Ledger
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount
from sluice.sources.kafka import KafkaSettings
from sluice_airflow import gate
from sluice_airflow.triggers.lag_watcher import _Lookout

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

SETTINGS = KafkaSettings("broker:9092", {})


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], set[str]]]:
    """Airflow's own client, as a task has it, and a server: what arrived since the last call, of Sluice's."""
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


def test_a_look_sends_the_lag_and_one_that_knows_nothing_sends_nothing(
    pipeline_file: Callable[..., Path], arrived: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, waits = str(pipeline_file()), {"airflow.sluice.lag.demo:7|g", "airflow.sluice.lag_age.demo:0|g"}
    for module in ("gate", "triggers.lag_watcher"):
        monkeypatch.setattr(f"sluice_airflow.{module}.backlog", lambda *_, **__: behind(7))
    gate.look(file, SETTINGS)
    assert arrived() == waits
    assert set(_Lookout(1.0).look([file], SETTINGS, 1.0)) == {file}
    assert arrived() == waits
    monkeypatch.setattr("sluice_airflow.gate.backlog", lambda *_, **__: unknown(DOWN))
    gate.look(file, SETTINGS)
    assert arrived() == set()


def test_a_run_sends_what_it_wrote_its_verdict_and_what_is_lost(
    dag: DAG, spark: FakeSpark, arrived: Callable[[], set[str]]
) -> None:
    spark.plan("bounded_run.py", written=[12], verdict="warned")
    with Ledger.open().acquire("flights", "earlier") as lease:
        ledger = Ledger.open()
        ledger.run_planned(lease, kind="live", recovery="ignore_range", epoch=1, ranges=[], topic_ids={})
        part = OffsetRange("flights", 1, 0, 3)
        account = RangeAccount(part, Counts(lost=3))
        ledger.batch_committed(lease, epoch=1, batch=7, accounts=[account], lost=[LostRange(part, "poison")])
        ledger.run_closed(lease, state="done")
    dag.test(logical_date=None)
    assert arrived() >= {
        "airflow.sluice.written.flights:12|c",
        "airflow.sluice.verdict.flights.warned:1|c",
        "airflow.sluice.lost.flights:3|g",
    }
    spark.plan("bounded_run.py", verdict="empty")
    dag.test(logical_date=None)
    assert not any(".written." in line for line in arrived()), "each offset counts once"
