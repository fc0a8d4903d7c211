"""How far Spark's tasks are, in words."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sluice_spark.engine import tasks
from sluice_spark.engine.logs import logger
from sluice_spark.engine.tasks import in_words


@pytest.mark.parametrize(
    ("done", "of", "seconds", "words"),
    [
        (0, 40, 11.0, "0 of 40 tasks are done (0%)"),
        (10, 40, 20.0, "10 of 40 tasks are done (25%), about 60 s to go"),
        (1_999, 2_000, 7200.0, "1,999 of 2,000 tasks are done (100%), about 4 s to go"),
        (40, 40, 20.0, "40 of 40 tasks are done (100%), about 1 s to go"),
    ],
)
def test_what_is_left_follows_from_what_is_done(done: int, of: int, seconds: float, words: str) -> None:
    assert in_words(done, of, seconds) == words


class Tracker:
    """A Spark whose tasks end one by one, and which fails now and then."""

    def __init__(self, spoken: threading.Event) -> None:
        self.asked, self.spoken = 0, spoken

    def getActiveStageIds(self) -> list[int]:
        self.asked += 1
        if self.asked > 40:
            self.spoken.set()
        if self.asked % 3 == 0:
            raise OSError("gone for a moment")
        return [7, 8]

    def getStageInfo(self, number: int) -> Any:
        return SimpleNamespace(numTasks=40, numCompletedTasks=min(self.asked, 39)) if number == 7 else None


def test_lines_come_until_the_step_ends_and_no_trouble_ends_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(tasks, "_LOOK", 0.001)
    monkeypatch.setattr(tasks, "_EVERY", 0.0)
    caplog.set_level(logging.INFO, logger.name)
    spoken = threading.Event()
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: Tracker(spoken)))
    with tasks.watched(spark, "batch 3"):
        assert spoken.wait(30)
    lines = list(caplog.messages)
    assert lines[0].startswith("batch 3: 1 of 40 tasks are done (2%)")
    assert len(lines) > 20
    assert not [t for t in threading.enumerate() if t.name == "sluice-progress"]
