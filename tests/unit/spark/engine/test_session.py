"""The lines of a run's log, and the end of a main: exit code, traceback and session."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from pyspark.errors import PySparkException
from tests.fixtures.books import span, split
from tests.fixtures.golden import Golden

from sluice.errors import ConfigError, SinkError
from sluice_spark.engine import session, tasks
from sluice_spark.engine.logs import logger, set_up
from sluice_spark.engine.progress import Progress
from sluice_spark.engine.session import run_main
from sluice_spark.engine.stopwatch import Stopwatch
from sluice_spark.engine.tasks import in_words


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a main that raises this; return its exit code."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: None)

    def run(error: BaseException | None) -> int:
        def main() -> None:
            if error is not None:
                raise error

        run_main(main)
        return codes.pop()

    return run


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (None, 0, []),
        (SinkError("full"), 30, ["full"]),
        (ConfigError("no such key", state="untouched", next_step="write another"), 10,
         ["no such key", "untouched", "write another"]),
        (KeyboardInterrupt(), 130, []),
        (SystemExit(7), 7, []),
        (SystemExit("text"), 1, []),
        (ValueError("odd"), 1, ["Traceback (most recent call last):", "sluice: error: ValueError: «odd»"]),
    ],
)  # fmt: skip
def test_main_ends_with_the_code_of_its_error_and_a_traceback_only_of_an_unexpected_one(
    ended: Callable[..., int], error: BaseException | None, code: int, lines: list[str], capfd: Any
) -> None:
    assert ended(error) == code
    written = capfd.readouterr().err
    assert all(line in written for line in lines)
    assert ("Traceback" in written) is isinstance(error, ValueError)


@pytest.mark.parametrize("remote", [True, False])
def test_main_stops_a_remote_session_and_no_other(
    ended: Callable[..., int], monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    active = mock.Mock()
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: active)
    monkeypatch.setattr(session, "is_remote", lambda: remote)
    assert ended(SinkError("full")) == 30
    assert active.stop.called is remote


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.INFO, logger.name)
    return caplog


def test_progress_counts_down_to_where_the_log_ended(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    clock = iter([0.0, 100.0, 104.0, 200.0, 201.0, 202.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    given = {"t": {0: 10}}
    progress = Progress({"t": {0: 2_010, 1: 500}}, given)
    first, second = [span(10, 1_010)], [span(1_010, 2_010), span(0, 500, 1)]
    progress.begin(0, first)
    progress.end(0, first, [split(10, 1_010, written=790, filtered=8, quarantined=2, absent=200)])
    progress.begin(1, second)
    progress.end(1, second, [split(1_010, 2_010), split(0, 500, 1)])
    progress.end(2, [], [])
    of_tasks = [in_words(*t) for t in ((0, 40, 11.0), (10, 40, 20.0), (1_999, 2_000, 7200.0), (40, 40, 20.0))]
    golden("progress", "\n".join([*said.messages, *of_tasks]))
    assert given == {"t": {0: 10}}, "the caller's positions are the caller's"


def test_progress_of_tasks_is_logged_until_the_step_ends_and_no_trouble_ends_it(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_LOOK", 0.001)
    monkeypatch.setattr(tasks, "_EVERY", 0.0)
    asked, spoken = iter(range(1, 1_000_000)), threading.Event()
    stage = mock.Mock(numTasks=40, numCompletedTasks=0)

    def active() -> list[int]:
        """Fail each third time; one task ends each time."""
        number = next(asked)
        stage.numCompletedTasks = min(number, 39)
        if number > 40:
            spoken.set()
        if number % 3 == 0:
            raise OSError("gone for a moment")
        return [7, 8]

    spark = mock.MagicMock()
    tracker = spark.sparkContext.statusTracker.return_value
    tracker.getActiveStageIds, tracker.getStageInfo = active, {7: stage}.get
    with tasks.watched(spark, "batch 3"):
        assert spoken.wait(30)
    assert said.messages[0].startswith("batch 3: 1 of 40 tasks are done (2%)")
    assert len(said.messages) > 20
    assert not [t for t in threading.enumerate() if t.name == "sluice-progress"]


def test_stopwatch_adds_up_phases_also_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch()
    assert watch.seconds.keys() == {"process"}
    assert watch.seconds["process"] > 0, "the seconds before it was made"
    watch.seconds["process"] = 1.0
    clock = iter([0.0, 2.5, 10.0, 10.25, 20.0, 21.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    for name in ("read", "commit"):
        with watch.phase(name):
            pass
    with pytest.raises(ValueError, match="broken"), watch.phase("read"):
        raise ValueError("broken")
    assert str(watch) == "process 1.00, read 3.50, commit 0.25"


def test_log_has_no_stack_of_a_failed_query(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    context = mock.Mock()
    context.contextType.return_value.name = "SQL"
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    set_up()
    failed = PySparkException("Division by zero", errorClass=None, contexts=[context])
    failed._log_exception()
    logger.info("a line")
    written = capfd.readouterr().err
    assert "Division" not in written
    assert "sluice: a line" in written
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.WARNING)
