"""When a backlog is worth an event, what is remembered of it, and what follows a run that failed."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.airflow.triggers.conftest import IDLE, NOW, SILENT, seen

from sluice.errors import (
    AuthorizationError,
    ConfigError,
    ExitCode,
    Retry,
    SourceUnreachableError,
    error_for_exit_code,
)
from sluice.lag import Backlog, Limits, PartitionLag, PastRun, Status
from sluice_airflow.triggers.crossing import PATIENCE, RETRY_AFTER, RETRY_AFTER_AT_MOST, Crossing, Runs

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def restarted(crossing: Crossing) -> Crossing:
    """Return what a triggerer that starts makes of the state of one that died."""
    return Crossing.of(json.loads(json.dumps(crossing.state)))


class Watch:
    """A crossing that sees one backlog after another, as the watcher does."""

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
        self.crossing = restarted(self.crossing)

    def run_begins(self) -> None:
        self.runs = Runs(self.runs.known + 1, 1)

    def run_ends(self) -> None:
        self.runs = Runs(self.runs.known, 0)

    def run(self) -> None:
        self.run_begins()
        self.run_ends()


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_crossing_makes_one_event_each_time_the_limit_is_crossed(watch: Watch) -> None:
    assert watch.see(seen(0, 0), seen(0, 5), seen(0, 10)) == 0, "at the limit is not over it"
    assert watch.see(seen(0, 11)) == 1
    watch.run_begins()
    assert watch.see(seen(0, 11), seen(0, 12, running="r"), seen(12, 14, running="r")) == 0
    watch.run_ends()
    assert watch.see(seen(12, 14), seen(12, 22)) == 0
    assert watch.see(seen(12, 23)) == 1


def test_crossing_ignores_growth_and_flutter_around_the_limit(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.run()  # it failed: the position stands where it was
    ends = itertools.islice(itertools.cycle([12, 9, 11, 7, 400, 6]), 3 * PATIENCE)
    assert watch.see(*(seen(0, end) for end in ends)) == 0


def test_crossing_is_armed_again_at_half_the_limit(watch: Watch) -> None:
    assert watch.see(seen(0, 11), seen(0, 5), seen(0, 11)) == 2


@pytest.mark.parametrize(("first", "later"), [((0, 11), (11, 50)), ((30, 50), (0, 50))], ids=["moved", "taken back"])
def test_crossing_of_another_position_is_another_event(watch: Watch, first: Any, later: Any) -> None:
    assert watch.see(seen(*first)) == 1
    watch.run()
    assert watch.see(seen(*later)) == 1
    assert watch.sent[1]["positions"] == {"demo": {"0": later[0]}}


def test_crossing_is_not_settled_by_a_run_that_read_a_part(watch: Watch) -> None:
    def two(first: int, second: int) -> Backlog:
        parts = (PartitionLag("demo", 0, first, 0, 20, 0.0), PartitionLag("demo", 1, second, 0, 20, 0.0))
        return Backlog("demo", parts, Limits(10), at=NOW)

    assert watch.see(two(0, 0)) == 1
    watch.run()
    assert watch.see(two(20, 7), two(20, 7), two(20, 20)) == 0
    assert watch.crossing == Crossing()


@pytest.mark.parametrize(
    ("limits", "below", "over"),
    [
        (Limits(None, timedelta(minutes=10)), {"age": 600.0}, {"age": 601.0}),
        (Limits(None, max_retention_share=0.5), {"share": 0.5}, {"share": 0.51}),
        (Limits(10, timedelta(minutes=10), match="all"), {"age": 9.0}, {"age": 601.0}),
        (Limits(1000, timedelta(minutes=10)), {"age": 600.0}, {"age": 601.0}),
    ],
)
def test_crossing_watches_every_limit(
    watch: Watch, limits: Limits, below: dict[str, Any], over: dict[str, Any]
) -> None:
    def at(figures: dict[str, Any]) -> Backlog:
        found = seen(0, 20, limits=limits)
        return replace(found, partitions=tuple(replace(p, **figures) for p in found.partitions))

    assert (watch.see(at(below)), watch.see(at(over))) == (0, 1)
    watch.run()
    assert watch.see(at(below), at(over)) == (1 if limits.match == "all" else 0), "a little below is no re-arming"


SILENT_PART = PartitionLag("demo", 1, 0, None, None, error="no leader")


@pytest.mark.parametrize(
    "unknown",
    [
        *(replace(SILENT, error=kind("no")) for kind in (SourceUnreachableError, AuthorizationError, ConfigError)),
        replace(seen(0, 99), partitions=(*seen(0, 99).partitions, SILENT_PART)),
    ],
)
def test_crossing_of_an_unknown_backlog_makes_no_event_and_settles_nothing(watch: Watch, unknown: Backlog) -> None:
    assert watch.see(unknown, unknown) == 0
    assert watch.see(seen(0, 11)) == 1
    assert watch.see(unknown, *[unknown] * PATIENCE) == 0
    watch.run()
    assert watch.see(seen(0, 11), unknown, seen(11, 11), unknown, seen(11, 30)) == 1


def test_crossing_makes_no_event_while_a_run_is_active_or_about_to_be(watch: Watch) -> None:
    assert watch.see(seen(0, 11, running="by hand")) == 0
    watch.run_begins()
    assert watch.see(seen(0, 11)) == 0
    watch.run_ends()
    assert (watch.see(seen(11, 11)), watch.see(seen(11, 22))) == (0, 1)


def test_crossing_makes_one_event_of_a_loss_that_only_a_run_can_report(watch: Watch) -> None:
    gone = seen(3, 12, start=9)
    assert (gone.over, gone.verdict) == (False, Status.LOST)
    assert watch.see(gone) == 1
    assert (watch.sent[0]["verdict"], watch.sent[0]["lost"]) == ("LOST", 6)
    watch.run()
    beyond = seen(30, 12)
    assert watch.see(gone, gone, beyond, beyond) == 1, "the position moved past what was announced: that is news"
    watch.run()
    assert watch.see(beyond, beyond) == 0


def test_crossing_repeats_after_a_restart_no_event_that_a_run_answers(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.run_begins()
    watch.restart()
    assert watch.see(seen(0, 11), seen(0, 11, running="r")) == 0
    watch.run_ends()
    watch.restart()
    assert watch.see(seen(0, 11), *[seen(0, 13)] * PATIENCE) == 0


def test_crossing_sends_the_same_event_after_a_restart_between_remembering_and_sending(watch: Watch) -> None:
    after, payload = Crossing().step(seen(0, 11), IDLE)
    watch.crossing = restarted(after)  # the triggerer died here
    assert watch.see(seen(0, 19)) == 1
    assert watch.sent == [payload], "word for word, so that it can be recognized as the same"
    assert watch.see(seen(0, 19)) == 0


def test_crossing_is_not_missed_over_a_restart(watch: Watch) -> None:
    assert watch.see(seen(0, 3)) == 0
    watch.restart()
    assert watch.see(seen(0, 11)) == 1


def test_crossing_sends_an_event_again_that_no_run_answers(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    assert watch.see(*[seen(0, 11)] * PATIENCE) == 0
    assert watch.see(seen(0, 12)) == 1
    watch.run_begins()
    assert watch.see(*[seen(0, 12)] * 2 * PATIENCE) == 0
    assert watch.sent[0] == watch.sent[1]


def test_crossing_takes_runs_that_were_deleted_for_no_answer(watch: Watch) -> None:
    assert watch.see(seen(0, 11)) == 1
    watch.runs = Runs(3, 0)
    assert watch.see(*[seen(0, 11)] * (PATIENCE + 1)) == 1
    watch.run()
    assert watch.see(*[seen(0, 11)] * (PATIENCE + 1)) == 0


def test_crossing_sends_an_event_once_without_a_dag_to_ask_about() -> None:
    crossing, payload = Crossing().step(seen(0, 11))
    assert payload is not None
    crossing = Crossing.of(crossing.state)
    assert crossing.step(seen(0, 11)) == (crossing, None)


@pytest.mark.parametrize("rubbish", [None, {}, "x", [1], {"announced": None}, {"announced": 3}])
def test_crossing_is_armed_by_a_state_that_cannot_be_read(rubbish: Any) -> None:
    assert Crossing.of(rubbish) == Crossing()


def test_crossing_makes_an_event_of_the_snapshot_without_a_clock() -> None:
    looks = [seen(0, 11, age=60.0), replace(seen(0, 11, age=67.25), at=NOW + timedelta(seconds=7.25))]
    (first, second) = [Crossing().step(found, IDLE)[1] for found in looks]
    assert first == second == {
        "pipeline": "demo", "verdict": "BACKLOG", "records": 11, "lost": 0, "limits": "more than 10 records",
        "oldest": "2026-11-02T04:59:00.000+00:00", "positions": {"demo": {"0": 0}}, "ends": {"demo": {"0": 11}},
    }  # fmt: skip


LOOK = 12.0
FAILED = PastRun("failed", code=int(ExitCode.SINK_FAILED))
HEAL = [code for code in ExitCode if code and error_for_exit_code(code).retry is not Retry.NEVER]
HOPELESS = [code for code in ExitCode if code and code not in HEAL]


class PatientWatch(Watch):
    """A watch that looks every twelve seconds, and whose triggerer restarts at each look."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.end = 0, 20
        self.last: PastRun | None = None
        self.time = datetime(2026, 11, 2, 5, tzinfo=UTC)

    def found(self, last: PastRun | None) -> Backlog:
        part = PartitionLag("demo", 0, self.position, 0, self.end, 0.0)
        return Backlog("demo", (part,), Limits(10), at=self.time, last=last)

    def look(self) -> int:
        self.time += timedelta(seconds=LOOK)
        self.restart()
        return self.see(self.found(self.last))

    def looks(self, seconds: float) -> int:
        return sum(self.look() for _ in range(int(seconds / LOOK)))

    def run_fails(self, last: PastRun | None = FAILED) -> None:
        self.run_begins()
        assert self.looks(60) == 0, "a run is active"
        self.run_ends()
        self.last = last

    def seconds_to_the_next(self) -> float:
        began = self.time
        while not self.look():
            assert (self.time - began).total_seconds() < 100_000, "no event"
        return (self.time - began).total_seconds()


@pytest.fixture
def patient() -> PatientWatch:
    watch = PatientWatch()
    assert watch.look() == 1
    return watch


SOON = RETRY_AFTER + 3 * LOOK


@pytest.mark.parametrize("last", [*(PastRun("failed", code=int(code)) for code in HEAL), PastRun("abandoned"), None])
def test_crossing_starts_a_failed_run_again_after_growing_delays(patient: PatientWatch, last: PastRun | None) -> None:
    waited = []
    for _ in range(6):
        patient.run_fails(last)
        waited.append(patient.seconds_to_the_next())
    expected = [RETRY_AFTER * factor for factor in (1, 2, 4, 8)] + [RETRY_AFTER_AT_MOST] * 2
    assert all(e <= w <= e + 3 * LOOK for w, e in zip(waited, expected, strict=True)), waited
    assert len(patient.sent) == 7


@pytest.mark.parametrize("code", HOPELESS)
def test_crossing_waits_for_a_person_after_a_failure_that_a_retry_cannot_heal(
    patient: PatientWatch, code: ExitCode
) -> None:
    patient.run_fails(PastRun("failed", code=int(code)))
    assert patient.looks(2 * 86_400) == 0
    patient.run_fails(FAILED)  # fixed and cleared, it now fails for another reason
    assert patient.seconds_to_the_next() < SOON


@pytest.mark.parametrize("code", [ExitCode.QUALITY_FAILED, ExitCode.CHECKPOINT_MISFIT])
def test_crossing_starts_a_run_after_the_decision_of_a_person(patient: PatientWatch, code: ExitCode) -> None:
    patient.run_fails(PastRun("failed", code=int(code)))
    assert patient.looks(86_400) == 0
    patient.last = PastRun("failed", code=int(code), settled=True)  # by sluice accept, retract or reset
    assert patient.seconds_to_the_next() < SOON
    patient.run_fails(PastRun("failed", code=int(code)))
    assert patient.looks(86_400) == 0, "another attempt has to be settled, too"


def test_crossing_waits_for_a_cleared_run(patient: PatientWatch) -> None:
    patient.run_fails()
    assert patient.looks(RETRY_AFTER - 5 * LOOK) == 0
    patient.runs = Runs(patient.runs.known, 1)  # no new run, and one is active
    assert patient.looks(3 * RETRY_AFTER) == 0
    patient.run_ends()
    assert patient.seconds_to_the_next() >= RETRY_AFTER


def test_crossing_begins_its_delays_again_after_a_run_that_read_a_part(patient: PatientWatch) -> None:
    for _ in range(3):
        patient.run_fails()
        patient.seconds_to_the_next()
    patient.run_fails()
    patient.position, patient.end = 5, 40
    patient.seconds_to_the_next()
    patient.run_fails()
    assert patient.seconds_to_the_next() < SOON
    assert patient.sent[-1]["positions"] == {"demo": {"0": 5}}


def test_crossing_takes_failures_for_settled_by_a_run_that_succeeds(patient: PatientWatch) -> None:
    patient.run_fails()
    patient.seconds_to_the_next()
    patient.run_fails(PastRun("done"))
    patient.position = patient.end
    assert patient.looks(86_400) == 0
    assert patient.crossing.state == {}


def test_crossing_outlook_says_what_follows_a_failure(patient: PatientWatch) -> None:
    def outlook(last: PastRun | None) -> str:
        return patient.crossing.outlook(patient.found(last))

    assert outlook(None) == ""
    patient.run_fails()
    patient.look()
    assert "5 min" in outlook(FAILED)
    assert "cleared" in outlook(PastRun("failed", code=int(ExitCode.OFFSETS_GONE)))
