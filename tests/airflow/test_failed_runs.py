"""A run that failed, and what the watcher does about the backlog that it left."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ExitCode, Retry, error_for_exit_code
from sluice.lag import Backlog, Limits, PartitionLag, PastRun
from sluice_airflow.factory import build_dag
from sluice_airflow.triggers.crossing import RETRY_AFTER, RETRY_AFTER_AT_MOST, Crossing, Runs
from sluice_airflow.triggers.lag_watcher import LagWatcher

LOOK = 12.0
FAILED = PastRun("failed", code=int(ExitCode.SINK_FAILED))


class Watch:
    """A crossing that looks every twelve seconds at a position that stands still, unless somebody moves it."""

    def __init__(self) -> None:
        self.crossing, self.runs = Crossing(), Runs(3, 0)
        self.position, self.end = 0, 20
        self.last: PastRun | None = None
        self.time = datetime(2026, 11, 2, 5, tzinfo=UTC)
        self.sent: list[dict[str, Any]] = []

    def look(self) -> int:
        """Look once more; return how many events that made."""
        self.time += timedelta(seconds=LOOK)
        part = PartitionLag("demo", 0, self.position, 0, self.end, 0.0)
        found = Backlog("demo", (part,), Limits(10), at=self.time, last=self.last)
        runs = self.runs if self.crossing.wants_runs(found) else None
        self.crossing, payload = self.crossing.step(found, runs)
        self.crossing = Crossing.of(json.loads(json.dumps(self.crossing.state)))  # a triggerer may end at any look
        if payload is not None:
            self.sent.append(payload)
        return int(payload is not None)

    def looks(self, seconds: float) -> int:
        return sum(self.look() for _ in range(int(seconds / LOOK)))

    def a_run_fails(self, last: PastRun | None = FAILED, seconds: float = 60) -> None:
        self.runs = Runs(self.runs.known + 1, 1)
        assert self.looks(seconds) == 0, "a run is at work"
        self.runs, self.last = Runs(self.runs.known, 0), last

    def seconds_to_the_next(self, at_most: float = 100_000) -> float:
        began = self.time
        while not self.look():
            assert (self.time - began).total_seconds() < at_most, "no event"
        return (self.time - began).total_seconds()


@pytest.fixture
def watch() -> Watch:
    watch = Watch()
    assert watch.look() == 1
    return watch


HEAL = [code for code in ExitCode if code and error_for_exit_code(code).retry is not Retry.NEVER]
HOPELESS = [code for code in ExitCode if code and code not in HEAL]


@pytest.mark.parametrize("last", [*(PastRun("failed", code=int(code)) for code in HEAL), PastRun("abandoned"), None])
def test_a_run_that_failed_is_started_again_later_and_later(watch: Watch, last: PastRun | None) -> None:
    waited = []
    for _ in range(6):
        watch.a_run_fails(last)
        waited.append(watch.seconds_to_the_next())
    expected = [RETRY_AFTER * factor for factor in (1, 2, 4, 8)] + [RETRY_AFTER_AT_MOST] * 2
    assert all(e <= w <= e + 3 * LOOK for w, e in zip(waited, expected, strict=True)), waited
    assert len(watch.sent) == 7


@pytest.mark.parametrize("code", HOPELESS)
def test_what_trying_again_cannot_heal_waits_for_a_person(watch: Watch, code: ExitCode) -> None:
    watch.a_run_fails(PastRun("failed", code=int(code)))
    assert watch.looks(2 * 86_400) == 0
    watch.a_run_fails(FAILED)  # somebody fixed it and cleared the run, which now fails for another reason
    assert watch.seconds_to_the_next() < RETRY_AFTER + 3 * LOOK


@pytest.mark.parametrize("code", [ExitCode.QUALITY_FAILED, ExitCode.CHECKPOINT_MISFIT])
def test_what_a_person_decided_on_starts_a_run(watch: Watch, code: ExitCode) -> None:
    watch.a_run_fails(PastRun("failed", code=int(code)))
    assert watch.looks(86_400) == 0
    watch.last = PastRun("failed", code=int(code), settled=True)  # by sluice accept, retract or reset
    assert watch.seconds_to_the_next() < RETRY_AFTER + 3 * LOOK
    watch.a_run_fails(PastRun("failed", code=int(code)))
    assert watch.looks(86_400) == 0, "another attempt has to be settled, too"


def test_a_run_that_is_cleared_is_waited_for(watch: Watch) -> None:
    watch.a_run_fails()
    assert watch.looks(RETRY_AFTER - 5 * LOOK) == 0
    watch.runs = Runs(watch.runs.known, 1)  # cleared: no new run, and one at work
    assert watch.looks(3 * RETRY_AFTER) == 0
    watch.runs = Runs(watch.runs.known, 0)
    assert watch.seconds_to_the_next() >= RETRY_AFTER


def test_a_run_that_read_a_part_begins_to_count_again(watch: Watch) -> None:
    for _ in range(3):
        watch.a_run_fails()
        watch.seconds_to_the_next()
    watch.a_run_fails()
    watch.position = 5
    watch.end = 40
    watch.seconds_to_the_next()
    watch.a_run_fails()
    assert watch.seconds_to_the_next() < RETRY_AFTER + 3 * LOOK
    assert watch.sent[-1]["positions"] == {"demo": {"0": 5}}


def test_a_run_that_succeeds_settles_it(watch: Watch) -> None:
    watch.a_run_fails()
    watch.seconds_to_the_next()
    watch.a_run_fails(PastRun("done"))
    watch.position = watch.end
    assert watch.looks(86_400) == 0
    assert watch.crossing.state == {}


def test_it_says_what_becomes_of_a_failure(watch: Watch) -> None:
    part = PartitionLag("demo", 0, 0, 0, 20, 0.0)

    def outlook(last: PastRun | None) -> str:
        return watch.crossing.outlook(Backlog("demo", (part,), Limits(10), at=watch.time, last=last))

    assert outlook(None) == ""
    watch.a_run_fails()
    watch.look()
    assert "starts 5 min after" in outlook(FAILED)
    assert "cleared" in outlook(PastRun("failed", code=int(ExitCode.OFFSETS_GONE)))


def test_the_delay_is_the_dags_to_choose(pipeline_file: Callable[..., Path]) -> None:
    (asset,) = build_dag(pipeline_file(more="schedule: on_lag\n"), retry_after=20).timetable.asset_condition.objects
    kwargs = asset.watchers[0].trigger.serialize()[1]
    assert LagWatcher(**kwargs).retry_after == kwargs["retry_after"] == 20
