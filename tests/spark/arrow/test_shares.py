"""Workers that start while the driver plans, and what that must not change."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import Sandbox

from sluice_spark.arrow import shares

pytestmark = pytest.mark.spark


def started() -> None:
    """Wait until no warming up is under way."""
    for thread in threading.enumerate():
        if thread.name == "sluice-warm-up":
            thread.join(60)


def test_workers_are_started_for_each_core_and_nobody_waits(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = []
    may_end = threading.Event()

    class Watched:
        def range(self, *numbers: int) -> Any:
            frame = spark.range(*numbers)

            class Frame:
                def mapInArrow(self, *arguments: Any) -> Any:
                    class Made:
                        def collect(self) -> None:
                            may_end.wait(60)
                            rows.extend(frame.mapInArrow(*arguments).collect())

                    return Made()

            return Frame()

    monkeypatch.setattr(shares, "cores", lambda _: 2)
    shares.warm_up(Watched())  # type: ignore[arg-type]
    assert rows == []
    may_end.set()
    started()
    assert [row.done for row in rows] == [True, True]


def test_a_session_that_fails_meanwhile_says_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "cores", lambda _: 2)
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    shares.warm_up(None)  # type: ignore[arg-type]
    started()
    assert failed == []


@pytest.mark.kafka
@pytest.mark.parametrize("recovery", ["replay", "wal"])
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"transform": {"sql": "SELECT *, nowhere FROM source"}}, "nowhere"),
        ({"transform": {"sql": "SELECT FROM WHERE"}}, "transform"),
    ],
)
def test_a_file_that_is_wrong_is_told_as_ever(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, recovery: str, keys: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(shares, "_HERE", 0)
    sandbox.configure(recovery=recovery, **keys)
    sandbox.feed(4)
    assert why in sandbox.run("r", expect=10).message
