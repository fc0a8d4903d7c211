"""When a backlog is worth an event, and what is remembered of it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.airflow.triggers.conftest import IDLE, NOW, SILENT, seen

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag, Status
from sluice_airflow.triggers.crossing import PATIENCE, Crossing, Runs

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


class Watch:
    """A crossing that is fed look by look, as the watcher does, and forgets what a restart forgets."""

    def __init__(self) -> None:
        self.crossing = Crossing()
        self.runs = IDLE
        self.sent: list[dict[str, Any]] = []

    def see(self, *looks: Backlog) -> int:
        """Return how many events these looks made."""
        before = len(self.sent)
        for found in looks:
            runs = self.runs if self.crossing.wants_runs(found) else None
            self.crossing, payload = self.crossing.step(found, runs)
            if payload is not None:
                self.sent.append(json.loads(json.dumps(payload)))
        return len(self.sent) - before

    def restart(self) -> None:
        self.crossing = Crossing.of(json.loads(json.dumps(self.crossing.state)))

    def a_run_begins(self) -> None:
        self.runs = Runs(self.runs.known + 1, 1)

    def it_ends(self) -> None:
        self.runs = Runs(self.runs.known, 0)


@pytest.fixture
def watch() -> Watch:
    return Watch()


# --- the crossing ----------------------------------------------------------------------------------------------------


def test_one_event_for_each_time_the_limit_is_crossed(watch: Watch) -> None:
    assert watch.see(seen(0, 0), seen(0, 5), seen(0, 10)) == 0, "at the limit is not over it"
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    assert watch.see(seen(0, 11), seen(0, 12, running="r"), seen(12, 14, running="r")) == 0
    watch.it_ends()
    assert watch.see(seen(12, 14), seen(12, 22)) == 0
    assert watch.see(seen(12, 23)) == 1


def test_growth_and_flutter_around_the_limit_add_nothing(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.it_ends()  # it failed: the position stands where it was
    ends = itertools.islice(itertools.cycle([12, 9, 11, 7, 400, 6]), 3 * PATIENCE)
    assert watch.see(*(seen(0, end) for end in ends)) == 0


def test_a_lag_that_fell_to_half_the_limit_can_cross_it_again(watch: Watch) -> None:
    assert watch.see(seen(0, 11), seen(0, 5), seen(0, 11)) == 2


def test_what_came_while_the_run_read_is_another_crossing(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(seen(11, 50)) == 1
    assert watch.sent[1]["positions"] == {"demo": {"0": 11}}


def test_a_run_that_read_a_part_only_settles_nothing(watch: Watch) -> None:
    def two(first: int, second: int) -> Backlog:
        parts = (PartitionLag("demo", 0, first, 0, 20, 0.0), PartitionLag("demo", 1, second, 0, 20, 0.0))
        return Backlog("demo", parts, Limits(10), at=NOW)

    assert watch.see(two(0, 0)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(two(20, 7), two(20, 7)) == 0
    assert watch.see(two(20, 20)) == 0
    assert watch.crossing == Crossing()


def test_a_position_that_was_taken_back_is_another_backlog(watch: Watch) -> None:
    assert watch.see(seen(30, 50)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(seen(0, 50)) == 1


@pytest.mark.parametrize(
    ("limits", "below", "over"),
    [
        (Limits(None, timedelta(minutes=10)), {"age": 600.0}, {"age": 601.0}),
        (Limits(None, max_retention_share=0.5), {"share": 0.5}, {"share": 0.51}),
        (Limits(10, timedelta(minutes=10), match="all"), {"age": 9.0}, {"age": 601.0}),
        (Limits(1000, timedelta(minutes=10)), {"age": 600.0}, {"age": 601.0}),
    ],
)
def test_every_limit_can_be_crossed(watch: Watch, limits: Limits, below: dict[str, Any], over: dict[str, Any]) -> None:
    def at(figures: dict[str, Any]) -> Backlog:
        found = seen(0, 20, limits=limits)
        return replace(found, partitions=tuple(replace(p, **figures) for p in found.partitions))

    assert watch.see(at(below)) == 0
    assert watch.see(at(over)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(at(below), at(over)) == (1 if limits.match == "all" else 0), "a little below is no re-arming"


@pytest.mark.parametrize(
    "error", [SourceUnreachableError("silent"), AuthorizationError("refused"), ConfigError("none")]
)
def test_unknown_makes_no_event_settles_nothing_and_mends_itself(watch: Watch, error: SluiceError) -> None:
    unknown = replace(SILENT, error=error)
    assert watch.see(unknown, unknown) == 0
    assert watch.see(seen(0, 11)) == 1
    assert watch.see(unknown, *[unknown] * PATIENCE) == 0
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(seen(0, 11), unknown, seen(11, 11), unknown, seen(11, 30)) == 1


def test_a_part_that_is_unknown_is_no_crossing(watch: Watch) -> None:
    part = PartitionLag("demo", 1, 0, None, None, error="no leader")
    found = seen(0, 99)
    assert watch.see(replace(found, partitions=(*found.partitions, part))) == 0
    assert watch.see(found) == 1


def test_no_event_while_a_run_is_at_work_or_is_about_to_be(watch: Watch) -> None:
    assert watch.see(seen(0, 11, running="by hand")) == 0
    watch.a_run_begins()
    assert watch.see(seen(0, 11)) == 0
    watch.it_ends()
    assert watch.see(seen(11, 11)) == 0
    assert watch.see(seen(11, 22)) == 1


def test_what_only_a_run_can_report_is_an_event_once(watch: Watch) -> None:
    gone = seen(3, 12, start=9)
    assert (gone.over, gone.verdict) == (False, Status.LOST)
    assert watch.see(gone) == 1
    assert (watch.sent[0]["verdict"], watch.sent[0]["lost"]) == ("LOST", 6)
    watch.a_run_begins()
    watch.it_ends()
    beyond = seen(30, 12)
    assert watch.see(gone, gone, beyond, beyond) == 1, "the position moved past what was announced: that is news"
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(beyond, beyond) == 0


# --- restarts --------------------------------------------------------------------------------------------------------


def test_a_restart_repeats_nothing_that_a_run_answered(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.it_ends()
    watch.restart()
    assert watch.see(seen(0, 11), *[seen(0, 13)] * PATIENCE) == 0


def test_a_restart_while_the_run_is_at_work(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.a_run_begins()
    watch.restart()
    assert watch.see(seen(0, 11), seen(0, 11, running="r")) == 0
    watch.it_ends()
    assert watch.see(seen(0, 11)) == 0


def test_a_restart_between_remembering_and_sending_misses_nothing(watch: Watch) -> None:
    after, payload = Crossing().step(seen(0, 11), IDLE)
    watch.crossing = Crossing.of(json.loads(json.dumps(after.state)))  # and the triggerer died here
    assert watch.see(seen(0, 19)) == 1
    assert watch.sent == [payload], "word for word, so that it can be told to be the same"
    assert watch.see(seen(0, 19)) == 0


def test_a_crossing_during_the_restart_is_not_missed(watch: Watch) -> None:
    assert watch.see(seen(0, 3)) == 0
    watch.restart()
    assert watch.see(seen(0, 11)) == 1


def test_an_event_that_no_run_answers_is_sent_again_after_a_while(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    assert watch.see(*[seen(0, 11)] * PATIENCE) == 0
    assert watch.see(seen(0, 12)) == 1
    watch.a_run_begins()
    assert watch.see(*[seen(0, 12)] * 2 * PATIENCE) == 0
    assert watch.sent[0] == watch.sent[1]


def test_runs_that_were_deleted_are_no_answer(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.runs = Runs(3, 0)
    assert watch.see(*[seen(0, 11)] * (PATIENCE + 1)) == 1
    watch.a_run_begins()
    watch.it_ends()
    assert watch.see(*[seen(0, 11)] * (PATIENCE + 1)) == 0


def test_without_a_dag_to_ask_about_nothing_is_sent_twice(watch: Watch) -> None:
    crossing, payload = Crossing().step(seen(0, 11))
    assert payload is not None
    crossing = Crossing.of(crossing.state)
    assert crossing.step(seen(0, 11)) == (crossing, None)


@pytest.mark.parametrize("rubbish", [None, {}, "x", [1], {"announced": None}, {"announced": 3}])
def test_a_state_that_says_nothing_is_armed(rubbish: Any) -> None:
    assert Crossing.of(rubbish) == Crossing()


def test_the_payload_is_the_snapshot_and_knows_no_clock() -> None:
    looks = [seen(0, 11, age=60.0), replace(seen(0, 11, age=67.25), at=NOW + timedelta(seconds=7.25))]
    (first, second) = [Crossing().step(found, IDLE)[1] for found in looks]
    assert first == second == {
        "pipeline": "demo", "verdict": "BACKLOG", "records": 11, "lost": 0, "limits": "more than 10 records",
        "oldest": "2026-11-02T04:59:00.000+00:00", "positions": {"demo": {"0": 0}}, "ends": {"demo": {"0": 11}},
    }  # fmt: skip
