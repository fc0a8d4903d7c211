"""Workers start while the driver plans, and that changes nothing else."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from tests.fixtures.runs import Sandbox

from sluice_spark.arrow import shares

pytestmark = pytest.mark.spark


def started() -> None:
    """Wait until no warming up is under way."""
    for thread in threading.enumerate():
        if thread.name == "sluice-warm-up":
            thread.join(60)


def test_arrow_warm_up_starts_workers_and_returns_at_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, done = threading.Event(), list[Any]()

    def counted(frame: DataFrame) -> list[Any]:
        may_end.wait(60)
        done.extend(frame.toArrow().to_pylist())
        return []

    monkeypatch.setattr(DataFrame, "collect", counted)
    shares.warm_up(spark)
    assert done == []
    may_end.set()
    started()
    assert done == [{"done": True}] * 2


def test_arrow_warm_up_leaves_a_failure_of_the_session_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "cores", lambda _: 2)
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    shares.warm_up(None)  # type: ignore[arg-type]
    started()
    assert failed == []


@pytest.mark.kafka
def test_arrow_warm_up_delays_no_refusal_of_a_wrong_file(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "_HERE", 0)
    sandbox.configure(recovery="wal", transform={"sql": "SELECT *, nowhere FROM source"})
    sandbox.feed(4)
    assert "nowhere" in sandbox.run("r", expect=10).message
