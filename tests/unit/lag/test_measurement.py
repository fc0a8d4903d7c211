"""Lag from positions, the broker's answers and past runs: numbers, statuses, limits and the form for programs."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.books import span

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Ages, Backlog, Limits, PastRun, Recorded, Status
from sluice.lag import measure as measured
from sluice.pipeline.schedule import Lag
from sluice.sources.state import FirstUnread, PartitionState, TopicState

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DOWN = SourceUnreachableError("no broker answers", state="untouched", next_step="start it")
DENIED = AuthorizationError("no right to DESCRIBE topic 't'", state="untouched", next_step="grant it")


def topic(*spans: tuple[int, ...], name: str = "t", **more: Any) -> TopicState:
    """Return a broker's answer: start, end and high watermark of each partition."""
    return TopicState(name, "id", {p: PartitionState(*span) for p, span in enumerate(spans)}, **more)


def failing(error: SluiceError, name: str = "t") -> TopicState:
    return TopicState(name, "", {}, error=error)


def ago(seconds: float) -> FirstUnread:
    return FirstUnread(NOW.timestamp() - seconds, "CreateTime")


def measure(pipeline: str, positions: Any, states: Any, starting: Any = "earliest", **known: Any) -> Backlog:
    """Measure with fields of what is recorded, and of ages, by their names."""
    recorded, ages = (
        {f.name: known.pop(f.name) for f in fields(kind) if f.name in known} for kind in (Recorded, Ages)
    )  # fmt: skip
    running = known.pop("running", None)
    found = measured(pipeline, Recorded(positions, **recorded), states, starting, ages=Ages(**ages), **known)
    return replace(found, running=running)


def at(position: int, *spans: tuple[int, ...], **known: Any) -> Backlog:
    """Measure a topic whose partitions are all read up to one position."""
    return measure("p", {"t": dict.fromkeys(range(len(spans)), position)}, [topic(*spans)], now=NOW, **known)


@pytest.mark.parametrize(
    ("position", "log", "known", "status", "numbers"),
    [
        (10, (0, 10), {}, Status.OK, (0, 0, 0, None)),
        (10, (0, 10, 15), {}, Status.OK, (0, 0, 0, 5)),  # an open transaction
        (4, (0, 10), {}, Status.BACKLOG, (6, 0, 0, None)),
        (4, (0, 10), {"ids": {"t": "id"}}, Status.BACKLOG, (6, 0, 0, None)),
        (4, (0, 10), {"ids": {"t": "another"}}, Status.RECREATED, (None, None, 0, None)),
        (12, (0, 10), {}, Status.RECREATED, (None, None, 2, None)),  # never negative
        (4, (7, 10), {}, Status.LOST, (3, 3, 0, None)),
        (4, (10, 10), {}, Status.LOST, (0, 6, 0, None)),  # an emptied log
        (4, (0, 10), {"furthest": {"t": {0: 6}}}, Status.REWOUND, (6, 0, 0, None)),
        (6, (0, 10), {"furthest": {"t": {0: 6}}}, Status.BACKLOG, (4, 0, 0, None)),
        # a driver died between the ledger's commit and the checkpoint's
        (4, (0, 10), {"furthest": {"t": {0: 6}}, "planned": {"t": {0: 6}}}, Status.BACKLOG, (6, 0, 0, None)),
    ],
)
def test_lag_of_a_partition_has_a_status_and_numbers(
    position: int, log: Any, known: Any, status: Status, numbers: Any
) -> None:
    backlog = at(position, log, **known, limits=Limits(1_000_000))
    (part,) = backlog.partitions
    assert (part.status, backlog.verdict, backlog.records, backlog.lost) == (status, status, *numbers[:2])
    assert (part.records, part.lost, part.beyond, part.pending) == numbers
    problem = status in (Status.LOST, Status.RECREATED)
    assert (backlog.over, backlog.incomplete) == (False, False)
    assert (backlog.needs_a_run, backlog.worth_a_run) == (problem, problem)


def test_lag_counts_added_partitions_and_names_those_that_are_gone() -> None:
    backlog = measure("p", {"t": {0: 4, 1: 10, 3: 5}}, [topic((0, 10), (0, 10), (0, 3))])
    assert [(p.records, p.status) for p in backlog.partitions] == [
        (6, Status.BACKLOG), (0, Status.OK), (3, Status.NEW), (None, Status.RECREATED),
    ]  # fmt: skip
    assert (backlog.records, backlog.needs_a_run) == (9, True)


@pytest.mark.parametrize(
    ("positions", "starting", "records", "lost"),
    [
        (None, "earliest", 7, 0),
        (None, "latest", 0, 0),
        ({"t": {}}, "earliest", 7, 3),  # a partition added after the first run is read from offset 0
        ({"t": {}}, "latest", 7, 3),
    ],
)
def test_lag_of_a_partition_without_a_position_is_new(positions: Any, starting: Any, records: int, lost: int) -> None:
    (part,) = measure("p", positions, [topic((3, 10))], starting).partitions
    assert (part.position, part.records, part.lost) == (None, records, lost)
    assert part.status is (Status.LOST if lost else Status.NEW)


def test_lag_of_a_partition_without_a_leader_is_unknown() -> None:
    state = topic((0, 10), errors={1: SourceUnreachableError("t-1 has no leader")})
    backlog = measure("p", {"t": {0: 4, 1: 4}}, [state], limits=Limits(5))
    assert [(p.records, p.status) for p in backlog.partitions] == [(6, Status.BACKLOG), (None, Status.UNKNOWN)]
    assert (backlog.records, backlog.verdict, backlog.incomplete) == (6, Status.UNKNOWN, True)
    assert (backlog.over, backlog.worth_a_run) == (True, True)
    assert not measure("p", {"t": {0: 4, 1: 4}}, [state], limits=Limits(6)).over


def test_lag_is_unknown_while_no_broker_answers() -> None:
    backlog = measure("p", {"t": {0: 4, 1: 0}}, [failing(DOWN)], limits=Limits(0, timedelta(0), 0.1))
    assert [p.status for p in backlog.partitions] == [Status.UNKNOWN] * 2
    assert (backlog.records, backlog.lost, backlog.age, backlog.share) == (None, None, None, None)
    assert (backlog.over, backlog.worth_a_run, backlog.incomplete, backlog.error) == (False, False, True, DOWN)
    never = measure("p", None, [failing(ConfigError("Kafka has no topic 't'"))])
    assert (never.records, never.age, never.verdict, type(never.error)) == (None, None, Status.UNKNOWN, ConfigError)


def test_lag_without_the_right_to_read_is_auth_whatever_else_is_wrong() -> None:
    states = [failing(DENIED), topic((5, 10), name="u"), failing(DOWN, "v")]
    backlog = measure("p", {"t": {0: 1}, "u": {0: 1}, "v": {0: 1}}, states)
    assert [p.status for p in backlog.partitions] == [Status.AUTH, Status.LOST, Status.UNKNOWN]
    assert (backlog.verdict, backlog.error) == (Status.AUTH, DENIED)
    assert backlog.partitions[0].error == "no right to DESCRIBE topic 't'"


@pytest.mark.parametrize(
    ("errors", "shown"),
    [
        ([DOWN, ConfigError("no topic")], 1),
        ([DOWN, ConfigError("no topic"), DENIED], 2),
        ([SluiceError("odd"), DOWN], 0),
    ],
)
def test_lag_shows_the_error_that_waiting_fixes_least(errors: list[SluiceError], shown: int) -> None:
    states = [failing(error, f"t{n}") for n, error in enumerate(errors)]
    assert measure("p", None, states).error is errors[shown]


def test_lag_statuses_are_ordered_by_severity() -> None:
    order = ["OK", "NEW", "BACKLOG", "CLOCK", "GROWING", "UNKNOWN", "STUCK", "REWOUND", "LOST", "RECREATED", "AUTH"]
    assert [Status.worst([*map(Status, order[: n + 1]), Status.OK]) for n in range(len(order))] == order
    assert Status.worst([]) is Status.OK


def test_lag_has_the_age_of_the_oldest_first_unread_record() -> None:
    backlog = at(4, (0, 10), (0, 10), first_unread={("t", 0): ago(5), ("t", 1): ago(7)})
    assert (backlog.age, backlog.partitions[0].clock) == (7.0, "CreateTime")
    later = measure("p", {"t": {0: 4}}, [topic((0, 10))], first_unread={("t", 0): ago(60)}, now=NOW + 60 * MINUTE)
    assert later.age == 3660.0, "by the wall clock"
    assert at(10, (0, 10)).age == 0.0
    assert at(4, (0, 10), first_unread={("t", 0): ago(-59)}).age == 0.0, "clocks differ"
    # a transaction's marker is no record; the last one is behind the last record, where no run reads on
    marker = at(9, (0, 10), first_unread={("t", 0): FirstUnread(None)}, limits=Limits(5, timedelta(seconds=1)))
    assert (marker.records, marker.age, marker.over) == (1, 0.0, False)
    unknown = at(4, (0, 10), limits=Limits(None, timedelta(0), 0.0))
    assert (unknown.age, unknown.share, unknown.over) == (None, None, False)


@pytest.mark.parametrize(
    ("behind", "age", "over"),
    [((), None, True), ((-7200, -3600), None, True), ((-3600, 30, 90), 90.0, True), ((59,), 59.0, False)],
)
def test_lag_behind_a_record_from_the_future_has_the_age_of_others(behind: Any, age: Any, over: bool) -> None:
    others = tuple((NOW - timedelta(seconds=seconds)).timestamp() for seconds in behind)
    first = {("t", 0): replace(ago(-3600), others=others)}
    backlog = at(4, (0, 10), first_unread=first, limits=Limits(None, MINUTE))
    assert (backlog.verdict, backlog.age, backlog.over) == (Status.CLOCK, age, over)


@pytest.mark.parametrize(
    ("retention", "share", "over"),
    [({"t": timedelta(hours=4)}, 0.25, (True, False)), ({}, None, (False, False)), ({"t": None}, None, (False, False))],
)
def test_lag_has_a_share_of_the_retention_time(retention: Any, share: float | None, over: tuple[bool, bool]) -> None:
    backlog = at(4, (0, 10), first_unread={("t", 0): ago(3600)}, retention=retention)
    assert backlog.share == (share and pytest.approx(share))
    assert tuple(replace(backlog, limits=Limits(None, None, limit)).over for limit in (0.2, 0.25)) == over


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
def test_lag_is_late_by_the_offset_at_the_age_limit(position: int, first: int, offset: Any, late: bool | None) -> None:
    backlog = at(position, (first, 10), at_age_limit={("t", 0): offset}, limits=Limits(None, MINUTE))
    assert (backlog.partitions[0].late, backlog.over) == (late, bool(late))
    assert backlog.age == (0.0 if late is None else None)


@pytest.mark.parametrize(
    ("limits", "over"),
    [
        (Limits(5), True),
        (Limits(6), False),
        (Limits(6, timedelta(seconds=59)), True),
        (Limits(6, timedelta(seconds=60)), False),
        (Limits(6, timedelta(seconds=59), match="all"), False),
        (Limits(5, timedelta(seconds=59), match="all"), True),
        (Limits(None, timedelta(seconds=59), match="all"), True),
        (Limits(5, timedelta(seconds=59), 0.9, "all"), False),
        (Limits(None, None, 0.5), True),
        (Limits(None), False),
    ],
)
def test_lag_is_over_any_or_all_limits(limits: Limits, over: bool) -> None:
    known: dict[str, Any] = {"first_unread": {("t", 0): ago(60)}, "retention": {"t": timedelta(seconds=100)}}
    assert at(4, (0, 10), **known, limits=limits).over is over


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ({}, Limits(0)),
        ({"max_records": 7}, Limits(7)),
        ({"max_age": "15m"}, Limits(None, 15 * MINUTE)),  # and not: or a single record
        ({"max_retention_share": 0.5}, Limits(None, None, 0.5)),
        ({"max_records": 0, "max_age": "15m"}, Limits(0, 15 * MINUTE)),
        ({"max_records": 7, "max_age": "1h", "match": "all"}, Limits(7, 60 * MINUTE, None, "all")),
    ],
)
def test_lag_limits_are_those_of_the_pipeline_file(written: dict[str, Any], limits: Limits) -> None:
    assert Limits.of(Lag.model_validate(written)) == limits


def test_lag_limits_in_words() -> None:
    limits = Limits(1000, 15 * MINUTE, 0.5, "all")
    assert str(limits) == "more than 1,000 records and older than 15 min and over 50% of the retention time"


def test_lag_as_dict_has_each_partition_the_error_and_the_limits() -> None:
    states = [topic((5, 10)), topic((0, 2), name="u"), failing(DOWN, "v")]
    form = measure("p", {"t": {0: 4}}, states, limits=Limits(5, 2 * MINUTE), now=NOW).as_dict()
    assert (form["lag"], form["verdict"], form["at"]) == (7, "LOST", "2026-11-21T12:00:00.000+00:00")
    assert (form["error"]["type"], form["error"]["exit_code"]) == ("SourceUnreachableError", 20)
    assert form["limits"] == {"max_records": 5, "max_age": 120.0, "max_retention_share": None, "match": "any"}
    known = {"topic": "t", "partition": 0, "status": "LOST", "position": 4, "start": 5, "end": 10, "lag": 5, "lost": 1}
    unknown = dict.fromkeys(("pending", "age", "share", "clock", "error"))
    assert form["partitions"][0] == {**known, "beyond": 0, **unknown}


def test_lag_is_not_worth_a_run_beside_another_or_a_hold() -> None:
    assert (at(4, (0, 10)).over, at(4, (0, 10)).worth_a_run) == (True, True)
    assert at(4, (0, 10), running="r1").running == "r1"
    for known in ({"running": "r1"}, {"held": "bad"}):
        kept = replace(at(4, (0, 10)), **known)
        assert (kept.over, kept.worth_a_run) == (True, False)
        assert known.items() <= kept.as_dict().items()


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
def test_lag_is_stuck_after_three_failures_at_one_position(history: list[PastRun], status: Status) -> None:
    assert at(4, (0, 10), history=history).verdict is status


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
def test_lag_is_growing_if_runs_find_more_each_time(history: list[PastRun], limit: int, status: Status) -> None:
    assert at(0, (0, 400), history=history, limits=Limits(limit)).verdict is status


def test_lag_is_stuck_or_growing_in_single_partitions() -> None:
    stuck = [PastRun("failed", [span(4, 10), span(4, 10, 1)], [], 1)] * 3
    backlog = measure("p", {"t": {0: 4, 1: 10}}, [topic((0, 10), (0, 10))], history=stuck)
    assert [p.status for p in backlog.partitions] == [Status.STUCK, Status.OK]
    growing = [PastRun("done", [span(0, n), span(0, 50, 1)]) for n in (300, 200, 100)]
    assert [p.status for p in at(0, (0, 400), (0, 400), history=growing).partitions] == [Status.GROWING, Status.BACKLOG]


def test_lag_of_an_idle_hour_raises_no_alarm() -> None:
    history, retention = [PastRun("done")] * 3 + [DONE], {"t": 5 * MINUTE}
    idle = at(4, (0, 4), limits=Limits(0, MINUTE, 0.01), history=history, retention=retention)
    assert (idle.verdict, idle.over, idle.age, idle.share) == (Status.OK, False, 0.0, 0.0)
