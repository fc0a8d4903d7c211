"""Lag from positions, the broker's answers and past runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import pytest
from tests.unit.lag.conftest import DOWN, NOW, ago, at, span, topic

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Limits, PastRun, Status, measure
from sluice.sources.state import FirstUnread, PartitionState, TopicState

DENIED = AuthorizationError("no right to DESCRIBE topic 't'", state="untouched", next_step="grant it")


def test_lag_counts_records_that_can_still_be_read() -> None:
    backlog = measure("p", {"t": {0: 4, 1: 10}}, [topic((0, 10), (0, 10), (0, 3))])
    assert [p.records for p in backlog.partitions] == [6, 0, 3]
    assert [p.status for p in backlog.partitions] == [Status.BACKLOG, Status.OK, Status.NEW], "an added partition"
    assert (backlog.records, backlog.verdict) == (9, Status.BACKLOG)
    assert not backlog.needs_a_run
    assert not backlog.incomplete
    (part,) = at(4, (10, 10)).partitions
    assert (part.records, part.lost) == (0, 6), "an emptied log"
    (part,) = measure("p", {"t": {0: 10}}, [TopicState("t", "id", {0: PartitionState(0, 10, 15)})]).partitions
    assert (part.records, part.pending, part.status) == (0, 5, Status.OK), "an open transaction"


def test_pipeline_without_an_answer_has_no_number() -> None:
    backlog = measure("p", None, [TopicState("t", "", {}, error=ConfigError("Kafka has no topic 't'"))])
    assert (backlog.records, backlog.age, backlog.verdict) == (None, None, Status.UNKNOWN)
    assert isinstance(backlog.error, ConfigError)


@pytest.mark.parametrize(
    ("positions", "starting", "lag", "lost"),
    [
        (None, "earliest", 7, 0),
        (None, "latest", 0, 0),
        ({"t": {}}, "earliest", 7, 3),  # a partition added after the first run is read from offset 0
        ({"t": {}}, "latest", 7, 3),
    ],
)
def test_pipeline_without_a_position_is_new(
    positions: dict[str, dict[int, int]] | None, starting: Literal["earliest", "latest"], lag: int, lost: int
) -> None:
    (part,) = measure("p", positions, [topic((3, 10))], starting).partitions
    assert (part.position, part.records, part.lost) == (None, lag, lost)
    assert part.status is (Status.LOST if lost else Status.NEW)


def test_recreated_topic_has_no_number() -> None:
    backlog = at(4, (0, 10), known_ids={"t": "another"})
    assert (backlog.verdict, backlog.records, backlog.lost) == (Status.RECREATED, None, None)
    assert backlog.needs_a_run
    assert backlog.worth_a_run
    assert at(4, (0, 10), known_ids={"t": "id"}).verdict is Status.BACKLOG
    (part,) = (beyond := at(12, (0, 10))).partitions
    assert (part.records, part.lost, part.beyond) == (None, None, 2), "never negative"
    assert (part.status, beyond.needs_a_run) == (Status.RECREATED, True)
    gone = measure("p", {"t": {0: 5, 1: 5}}, [topic((0, 5))])
    assert [p.status for p in gone.partitions] == [Status.OK, Status.RECREATED]
    assert (gone.records, gone.needs_a_run) == (0, True)


def test_records_that_retention_removed_are_lost() -> None:
    backlog = at(4, (7, 10), limits=Limits(1_000_000))
    (part,) = backlog.partitions
    assert (part.records, part.lost, part.beyond) == (3, 3, 0)
    assert (backlog.verdict, backlog.lost, backlog.over) == (Status.LOST, 3, False)
    assert backlog.needs_a_run
    assert backlog.worth_a_run


def test_share_of_the_retention_time() -> None:
    known: Mapping[str, Any] = {"first_unread": {("t", 0): ago(3600)}, "retention": {"t": timedelta(hours=4)}}
    assert at(4, (0, 10), **known).share == pytest.approx(0.25)
    assert at(4, (0, 10), **known, limits=Limits(None, None, 0.2)).over
    assert not at(4, (0, 10), **known, limits=Limits(None, None, 0.25)).over
    for retention in ({}, {"t": None}):
        endless = at(4, (0, 10), first_unread={("t", 0): ago(9e9)}, retention=retention, limits=Limits(None, None, 0.1))
        assert (endless.share, endless.over) == (None, False)


def test_markers_have_no_age() -> None:
    """The end is the query's own, so nothing is left of them after a run; what is left in between has no record."""
    backlog = at(9, (0, 10), first_unread={("t", 0): FirstUnread(None)}, limits=Limits(5, timedelta(seconds=1)))
    assert (backlog.records, backlog.age, backlog.over) == (1, 0.0, False)


def test_partition_without_a_leader_is_unknown() -> None:
    state = topic((0, 10), errors={1: SourceUnreachableError("t-1 has no leader")})
    backlog = measure("p", {"t": {0: 4, 1: 4}}, [state], limits=Limits(5))
    assert [p.status for p in backlog.partitions] == [Status.BACKLOG, Status.UNKNOWN]
    assert backlog.partitions[1].records is None
    assert (backlog.records, backlog.verdict, backlog.incomplete) == (6, Status.UNKNOWN, True)
    assert backlog.over
    assert backlog.worth_a_run
    assert not measure("p", {"t": {0: 4, 1: 4}}, [state], limits=Limits(6)).over


def test_silent_broker_is_unknown() -> None:
    states = [TopicState("t", "", {}, error=DOWN)]
    backlog = measure("p", {"t": {0: 4, 1: 0}}, states, limits=Limits(0, timedelta(0), 0.1))
    assert [p.status for p in backlog.partitions] == [Status.UNKNOWN] * 2
    assert (backlog.records, backlog.lost, backlog.age, backlog.share) == (None, None, None, None)
    assert (backlog.over, backlog.worth_a_run, backlog.incomplete) == (False, False, True)
    assert backlog.error is DOWN


def test_missing_right_is_auth_and_outweighs_everything() -> None:
    states = [TopicState("t", "", {}, error=DENIED), topic((5, 10), name="u"), TopicState("v", "", {}, error=DOWN)]
    backlog = measure("p", {"t": {0: 1}, "u": {0: 1}, "v": {0: 1}}, states)
    assert [p.status for p in backlog.partitions] == [Status.AUTH, Status.LOST, Status.UNKNOWN]
    assert (backlog.verdict, backlog.error) == (Status.AUTH, DENIED)
    assert backlog.partitions[0].error == "no right to DESCRIBE topic 't'"


def test_age_is_that_of_the_oldest_first_unread_record() -> None:
    backlog = at(4, (0, 10), (0, 10), first_unread={("t", 0): ago(5), ("t", 1): ago(7)})
    assert (backlog.age, backlog.partitions[0].clock) == (7.0, "CreateTime")
    first = {("t", 0): ago(60)}
    later = measure("p", {"t": {0: 4}}, [topic((0, 10))], first_unread=first, now=NOW + timedelta(hours=1))
    assert later.age == 3660.0, "by the wall clock"
    assert at(10, (0, 10)).age == 0.0
    assert at(4, (0, 10), first_unread={("t", 0): ago(-3600)}).age == 0.0, "of a record from the future"
    unknown = at(4, (0, 10), limits=Limits(None, timedelta(0), 0.0))
    assert (unknown.age, unknown.share, unknown.over) == (None, None, False)


@pytest.mark.parametrize(
    ("position", "first", "offset", "late"),
    [
        (4, 0, None, True),  # no record is as young as the limit
        (4, 0, 5, True),  # offset 4 is older
        (4, 0, 4, False),
        (4, 0, 2, False),  # records out of the order of time: an older one may lie behind, and does not count
        (4, 6, 6, False),  # what retention took is not late but lost
        (10, 0, None, None),  # nothing waits
    ],
)
def test_offset_at_the_age_limit_decides_without_the_right_to_read(
    position: int, first: int, offset: int | None, late: bool | None
) -> None:
    limits = Limits(None, timedelta(minutes=1))
    backlog = at(position, (first, 10), at_age_limit={("t", 0): offset}, limits=limits)
    assert backlog.partitions[0].late is late
    assert backlog.over is bool(late)
    assert backlog.age == (0.0 if late is None else None)


# --- the pipeline's own cadence --------------------------------------------------------------------------------------


POISON = PastRun("failed", [span(4, 10)], [], 1)

DONE = PastRun("done", [span(0, 4)], [span(0, 4)])


@pytest.mark.parametrize(
    ("history", "status"),
    [
        ([POISON] * 3, Status.STUCK),
        ([POISON] * 3 + [DONE], Status.STUCK),
        ([POISON] * 2 + [DONE], Status.BACKLOG),
        ([POISON] * 2, Status.BACKLOG),
        ([DONE] + [POISON] * 3, Status.BACKLOG),
        ([PastRun("abandoned", [span(4, 10)])] * 3, Status.STUCK),  # the driver dies of it each time
        ([PastRun("failed", code=10)] * 3, Status.STUCK),  # before it could plan
        ([PastRun("failed", [span(2, 10)], [span(2, 4)])] + [POISON] * 2, Status.BACKLOG),  # one moved it
        ([PastRun("failed", [span(0, 5, 1)])] + [POISON] * 2, Status.BACKLOG),  # one did not touch it
        ([PastRun("failed", code=20)] * 3, Status.BACKLOG),  # the broker was down, and is back
        ([PastRun("failed", code=40)] * 3, Status.BACKLOG),
        ([POISON, PastRun("failed", code=20), POISON, PastRun("failed", code=40), POISON], Status.STUCK),
    ],
)
def test_three_failures_at_one_position_are_stuck(history: list[PastRun], status: Status) -> None:
    assert at(4, (0, 10), history=history).verdict is status


def test_stuck_and_growing_are_of_single_partitions() -> None:
    history = [PastRun("failed", [span(4, 10), span(4, 10, 1)], [], 1)] * 3
    backlog = measure("p", {"t": {0: 4, 1: 10}}, [topic((0, 10), (0, 10))], history=history)
    assert [p.status for p in backlog.partitions] == [Status.STUCK, Status.OK]
    history = [PastRun("done", [span(0, n), span(0, 50, 1)]) for n in (300, 200, 100)]
    backlog = at(0, (0, 400), (0, 400), history=history)
    assert [p.status for p in backlog.partitions] == [Status.GROWING, Status.BACKLOG]


def found(*counts: int) -> list[PastRun]:
    """Return successful runs that found so much, given oldest first."""
    return [PastRun("done", [span(0, n)], [span(0, n)]) for n in reversed(counts)]


@pytest.mark.parametrize(
    ("history", "limit", "status"),
    [
        (found(100, 200, 300), 50, Status.GROWING),
        (found(100, 200, 300), 1000, Status.BACKLOG),  # within the limits nothing is wrong
        (found(100, 300, 200), 50, Status.BACKLOG),
        (found(100, 100, 100), 50, Status.BACKLOG),
        (found(200, 300), 50, Status.BACKLOG),
        (found(900, 100, 200, 300), 50, Status.GROWING),
        ([*found(300), POISON, *found(100, 200)], 50, Status.GROWING),  # judged by the successful ones
    ],
)
def test_runs_that_find_more_each_time_are_growing(history: list[PastRun], limit: int, status: Status) -> None:
    assert at(0, (0, 400), history=history, limits=Limits(limit)).verdict is status


def test_day_of_hourly_runs_raises_no_alarm() -> None:
    """1,000 records an hour, a run each hour, a look each minute: the position stands still in between."""
    limits = Limits(1500, timedelta(minutes=90))
    history: list[PastRun] = []
    position = 0
    for minute in range(24 * 60):
        end = minute * 1000 // 60
        if minute % 60 == 0 and minute:
            history.insert(0, PastRun("done", [span(position, end)], [span(position, end)]))
            position = end
        now = NOW + timedelta(minutes=minute)
        first = FirstUnread(NOW.timestamp() + position * 60 / 1000 * 60)
        backlog = measure(
            "p", {"t": {0: position}}, [topic((0, end))], history=history, limits=limits, now=now,
            first_unread={("t", 0): first} if end > position else {}, furthest={"t": {0: position}},
        )  # fmt: skip
        assert (backlog.over, backlog.worth_a_run) == (False, False), minute
        assert backlog.verdict in (Status.OK, Status.BACKLOG), minute


def test_idle_hour_raises_no_alarm() -> None:
    limits, history = Limits(0, timedelta(minutes=1), 0.01), [PastRun("done"), PastRun("done"), PastRun("done"), DONE]
    for minute in range(60):
        now, retention = NOW + timedelta(minutes=minute), {"t": timedelta(minutes=5)}
        found = measure(
            "p", {"t": {0: 4}}, [topic((0, 4))], history=history, now=now, limits=limits, retention=retention
        )  # fmt: skip
        assert (found.verdict, found.over, found.age, found.share) == (Status.OK, False, 0.0, 0.0)


def test_checkpoint_that_was_taken_back_is_rewound() -> None:
    assert at(4, (0, 10), furthest={"t": {0: 6}}).verdict is Status.REWOUND
    assert at(6, (0, 10), furthest={"t": {0: 6}}).verdict is Status.BACKLOG
    assert at(4, (0, 10), furthest={"t": {0: 6}}, planned={"t": {0: 6}}).verdict is Status.BACKLOG, "not committed yet"


@pytest.mark.parametrize(
    ("errors", "shown"),
    [
        ([DOWN, ConfigError("no topic")], ConfigError),
        ([DOWN, ConfigError("no topic"), DENIED], AuthorizationError),
        ([SluiceError("odd"), DOWN], SluiceError),
    ],
)
def test_error_that_waiting_fixes_least_is_shown(errors: list[SluiceError], shown: type[SluiceError]) -> None:
    states = [TopicState(f"t{n}", "", {}, error=error) for n, error in enumerate(errors)]
    assert type(measure("p", None, states).error) is shown
