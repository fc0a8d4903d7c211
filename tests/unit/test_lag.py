"""Lag, from positions, the broker's answers and the ledger's past."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag, PastRun, Status, measure
from sluice.pipeline.starting import Lag
from sluice.ranges import OffsetRange
from sluice.sources.state import FirstUnread, PartitionState, TopicState

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DOWN = SourceUnreachableError("no broker answers", state="untouched", next_step="start it")
DENIED = AuthorizationError("no right to DESCRIBE topic 't'", state="untouched", next_step="grant it")


def topic(*spans: tuple[int, int], name: str = "t", **more: Any) -> TopicState:
    return TopicState(name, "id", {p: PartitionState(*span) for p, span in enumerate(spans)}, **more)


def ago(seconds: float) -> FirstUnread:
    return FirstUnread(NOW.timestamp() - seconds, "CreateTime")


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def at(position: int, *spans: tuple[int, int], **known: Any) -> Backlog:
    """Measure a topic whose partitions are all read up to one position."""
    return measure("p", {"t": dict.fromkeys(range(len(spans)), position)}, [topic(*spans)], now=NOW, **known)


# --- records ---------------------------------------------------------------------------------------------------------


def test_lag_is_what_can_still_be_read() -> None:
    backlog = measure("p", {"t": {0: 4, 1: 10}}, [topic((0, 10), (0, 10))])
    assert [p.records for p in backlog.partitions] == [6, 0]
    assert [p.status for p in backlog.partitions] == [Status.BACKLOG, Status.OK]
    assert (backlog.records, backlog.verdict) == (6, Status.BACKLOG)
    assert not backlog.needs_a_run
    assert not backlog.incomplete


def test_an_emptied_log_is_lost_up_to_its_end() -> None:
    (part,) = at(4, (10, 10)).partitions
    assert (part.records, part.lost) == (0, 6)


def test_a_limit_must_be_passed_not_met() -> None:
    for limit, over in ((6, False), (5, True)):
        assert at(4, (0, 10), limits=Limits(limit)).over is over


def test_a_pipeline_without_a_topic_that_answers_has_no_number() -> None:
    backlog = measure("p", None, [TopicState("t", "", {}, error=ConfigError("Kafka has no topic 't'"))])
    assert (backlog.records, backlog.age, backlog.verdict) == (None, None, Status.UNKNOWN)
    assert isinstance(backlog.error, ConfigError)


def test_the_printed_form_names_each_partition() -> None:
    form = measure("p", {"t": {0: 4}}, [topic((5, 10)), topic((0, 2), name="u")], now=NOW).as_dict()
    assert (form["lag"], form["verdict"], form["at"]) == (7, "LOST", "2026-11-21T12:00:00.000+00:00")
    assert form["partitions"][0] == {
        "topic": "t", "partition": 0, "status": "LOST", "position": 4, "start": 5, "end": 10, "lag": 5, "lost": 1,
        "beyond": 0, "pending": None, "age": None, "share": None, "clock": None, "error": None,
    }  # fmt: skip


def test_the_printed_form_tells_the_error_and_the_limits() -> None:
    form = measure("p", {"t": {0: 4}}, [TopicState("t", "", {}, error=DOWN)], limits=Limits(5, timedelta(minutes=2)))
    told = form.as_dict()
    assert told["error"] == {
        "type": "SourceUnreachableError", "exit_code": 20, "what": "no broker answers", "state": "untouched",
        "next_step": "start it",
    }  # fmt: skip
    assert told["limits"] == {"max_records": 5, "max_age": 120.0, "max_retention_share": None, "match": "any"}
    assert told["lag"] is None


# --- the cases that lag tools get wrong (table 1.8 of the facts) -----------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "starting", "lag", "lost"),
    [
        (None, "earliest", 7, 0),
        (None, "latest", 0, 0),
        ({"t": {}}, "earliest", 7, 3),  # a partition added after the first run is read from offset 0
        ({"t": {}}, "latest", 7, 3),
    ],
)
def test_no_position_is_new_and_counts_from_where_the_next_run_starts(
    positions: dict[str, dict[int, int]] | None, starting: Literal["earliest", "latest"], lag: int, lost: int
) -> None:
    (part,) = measure("p", positions, [topic((3, 10))], starting).partitions
    assert (part.position, part.records, part.lost) == (None, lag, lost)
    assert part.status is (Status.LOST if lost else Status.NEW)


def test_a_topic_with_another_id_was_recreated_and_is_no_zero() -> None:
    backlog = at(4, (0, 10), known_ids={"t": "another"})
    assert (backlog.verdict, backlog.records, backlog.lost) == (Status.RECREATED, None, None)
    assert backlog.needs_a_run
    assert backlog.worth_a_run
    assert at(4, (0, 10), known_ids={"t": "id"}).verdict is Status.BACKLOG


def test_a_position_beyond_the_end_was_recreated_and_never_a_negative_lag() -> None:
    backlog = at(12, (0, 10))
    (part,) = backlog.partitions
    assert (part.records, part.lost, part.beyond) == (None, None, 2)
    assert (part.status, backlog.needs_a_run) == (Status.RECREATED, True)


def test_a_partition_that_is_gone_was_recreated() -> None:
    backlog = measure("p", {"t": {0: 5, 1: 5}}, [topic((0, 5))])
    assert [p.status for p in backlog.partitions] == [Status.OK, Status.RECREATED]
    assert backlog.records == 0
    assert backlog.needs_a_run


def test_what_retention_took_is_lost_and_no_lag_and_calls_for_a_run() -> None:
    backlog = at(4, (7, 10), limits=Limits(1_000_000))
    (part,) = backlog.partitions
    assert (part.records, part.lost, part.beyond) == (3, 3, 0)
    assert (backlog.verdict, backlog.lost, backlog.over) == (Status.LOST, 3, False)
    assert backlog.needs_a_run
    assert backlog.worth_a_run


def test_the_share_of_the_retention_time_warns_before_the_loss() -> None:
    known: Mapping[str, Any] = {"first_unread": {("t", 0): ago(3600)}, "retention": {"t": timedelta(hours=4)}}
    assert at(4, (0, 10), **known).share == pytest.approx(0.25)
    assert at(4, (0, 10), **known, limits=Limits(None, None, 0.2)).over
    assert not at(4, (0, 10), **known, limits=Limits(None, None, 0.25)).over


@pytest.mark.parametrize("retention", [{}, {"t": None}])
def test_a_retention_without_end_has_no_share(retention: Mapping[str, None]) -> None:
    backlog = at(4, (0, 10), first_unread={("t", 0): ago(9e9)}, retention=retention, limits=Limits(None, None, 0.1))
    assert (backlog.share, backlog.over) == (None, False)


def test_markers_and_gaps_are_offsets_and_not_age() -> None:
    """The end is the query's own, so nothing is left of them after a run; what is left in between has no record."""
    backlog = at(9, (0, 10), first_unread={("t", 0): FirstUnread(None)}, limits=Limits(5, timedelta(seconds=1)))
    assert (backlog.records, backlog.age, backlog.over) == (1, 0.0, False)


def test_an_open_transaction_is_told_apart() -> None:
    state = TopicState("t", "id", {0: PartitionState(0, 10, 15)})
    (part,) = measure("p", {"t": {0: 10}}, [state]).partitions
    assert (part.records, part.pending, part.status) == (0, 5, Status.OK)


def test_an_added_partition_shows_at_once() -> None:
    backlog = measure("p", {"t": {0: 10}}, [topic((0, 10), (0, 3))])
    assert [(p.status, p.records) for p in backlog.partitions] == [(Status.OK, 0), (Status.NEW, 3)]


def test_a_partition_without_a_leader_is_unknown_and_the_others_decide() -> None:
    state = topic((0, 10), errors={1: SourceUnreachableError("t-1 has no leader")})
    backlog = measure("p", {"t": {0: 4, 1: 4}}, [state], limits=Limits(5))
    assert [p.status for p in backlog.partitions] == [Status.BACKLOG, Status.UNKNOWN]
    assert backlog.partitions[1].records is None
    assert (backlog.records, backlog.verdict, backlog.incomplete) == (6, Status.UNKNOWN, True)
    assert backlog.over
    assert backlog.worth_a_run
    assert not measure("p", {"t": {0: 4, 1: 4}}, [state], limits=Limits(6)).over


def test_a_silent_broker_is_unknown_and_neither_zero_nor_over() -> None:
    states = [TopicState("t", "", {}, error=DOWN)]
    backlog = measure("p", {"t": {0: 4, 1: 0}}, states, limits=Limits(0, timedelta(0), 0.1))
    assert [p.status for p in backlog.partitions] == [Status.UNKNOWN] * 2
    assert (backlog.records, backlog.lost, backlog.age, backlog.share) == (None, None, None, None)
    assert (backlog.over, backlog.worth_a_run, backlog.incomplete) == (False, False, True)
    assert backlog.error is DOWN


def test_a_missing_right_is_auth_names_it_and_outweighs_everything() -> None:
    states = [TopicState("t", "", {}, error=DENIED), topic((5, 10), name="u"), TopicState("v", "", {}, error=DOWN)]
    backlog = measure("p", {"t": {0: 1}, "u": {0: 1}, "v": {0: 1}}, states)
    assert [p.status for p in backlog.partitions] == [Status.AUTH, Status.LOST, Status.UNKNOWN]
    assert (backlog.verdict, backlog.error) == (Status.AUTH, DENIED)
    assert backlog.partitions[0].error == "no right to DESCRIBE topic 't'"


def test_records_from_the_future_have_no_negative_age() -> None:
    assert at(4, (0, 10), first_unread={("t", 0): ago(-3600)}).age == 0.0


def test_an_idle_partition_ages_by_the_wall_clock_and_an_empty_one_has_age_zero() -> None:
    first = {("t", 0): ago(60)}
    assert at(4, (0, 10), first_unread=first).age == 60.0
    later = measure("p", {"t": {0: 4}}, [topic((0, 10))], first_unread=first, now=NOW + timedelta(hours=1))
    assert later.age == 3660.0
    assert at(10, (0, 10)).age == 0.0


def test_what_a_run_is_reading_is_held_and_not_started_again() -> None:
    assert at(4, (0, 10)).worth_a_run
    held = at(4, (0, 10), running="r1")
    assert (held.over, held.worth_a_run, held.running) == (True, False, "r1")


# --- seconds ---------------------------------------------------------------------------------------------------------


def test_age_is_that_of_the_oldest_first_record() -> None:
    backlog = at(4, (0, 10), (0, 10), first_unread={("t", 0): ago(5), ("t", 1): ago(7)})
    assert backlog.age == 7.0
    assert backlog.partitions[0].clock == "CreateTime"


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
def test_the_offset_at_the_limit_stands_in_for_a_record_that_may_not_be_read(
    position: int, first: int, offset: int | None, late: bool | None
) -> None:
    limits = Limits(None, timedelta(minutes=1))
    backlog = at(position, (first, 10), at_age_limit={("t", 0): offset}, limits=limits)
    assert backlog.partitions[0].late is late
    assert backlog.over is bool(late)
    assert backlog.age == (0.0 if late is None else None)


def test_an_age_that_is_not_known_is_never_over() -> None:
    backlog = at(4, (0, 10), limits=Limits(None, timedelta(0), 0.0))
    assert (backlog.age, backlog.share, backlog.over) == (None, None, False)


# --- limits ----------------------------------------------------------------------------------------------------------


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
def test_any_or_all_limits_must_be_passed(limits: Limits, over: bool) -> None:
    known: Mapping[str, Any] = {"first_unread": {("t", 0): ago(60)}, "retention": {"t": timedelta(seconds=100)}}
    assert at(4, (0, 10), **known, limits=limits).over is over


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ({}, Limits(0)),
        ({"max_records": 7}, Limits(7)),
        ({"max_age": "15m"}, Limits(None, timedelta(minutes=15))),  # and not: or a single record
        ({"max_retention_share": 0.5}, Limits(None, None, 0.5)),
        ({"max_records": 0, "max_age": "15m"}, Limits(0, timedelta(minutes=15))),
        ({"max_records": 7, "max_age": "1h", "match": "all"}, Limits(7, timedelta(hours=1), None, "all")),
    ],
)
def test_limits_are_those_that_the_file_writes(written: dict[str, Any], limits: Limits) -> None:
    assert Limits.of(Lag.model_validate(written)) == limits


def test_limits_can_be_read_aloud() -> None:
    limits = Limits(1000, timedelta(minutes=15), 0.5, "all")
    assert str(limits) == "more than 1,000 records and older than 15 min and over 50% of the retention time"


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
def test_three_runs_that_failed_at_one_position_are_stuck(history: list[PastRun], status: Status) -> None:
    assert at(4, (0, 10), history=history).verdict is status


def test_nothing_is_stuck_where_nothing_waits() -> None:
    assert at(10, (0, 10), history=[POISON] * 3).verdict is Status.OK


def test_stuck_is_of_the_partition_that_stands() -> None:
    history = [PastRun("failed", [span(4, 10), span(4, 10, 1)], [], 1)] * 3
    backlog = measure("p", {"t": {0: 4, 1: 10}}, [topic((0, 10), (0, 10))], history=history)
    assert [p.status for p in backlog.partitions] == [Status.STUCK, Status.OK]


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


def test_growth_is_of_the_partitions_that_grew() -> None:
    history = [PastRun("done", [span(0, n), span(0, 50, 1)]) for n in (300, 200, 100)]
    assert [p.status for p in at(0, (0, 400), (0, 400), history=history).partitions] == [
        Status.GROWING, Status.BACKLOG,
    ]  # fmt: skip


def test_a_day_of_hourly_runs_raises_no_alarm() -> None:
    """1,000 records an hour, a run each hour, a look each minute: the position stands still in between, as it must."""
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


def test_an_idle_hour_raises_no_alarm() -> None:
    history = [PastRun("done"), PastRun("done"), PastRun("done"), DONE]
    for minute in range(60):
        backlog = measure(
            "p", {"t": {0: 4}}, [topic((0, 4))], history=history, now=NOW + timedelta(minutes=minute),
            limits=Limits(0, timedelta(minutes=1), 0.01), retention={"t": timedelta(minutes=5)},
        )  # fmt: skip
        assert (backlog.verdict, backlog.over, backlog.age, backlog.share) == (Status.OK, False, 0.0, 0.0)


def test_a_checkpoint_that_was_taken_back_is_rewound() -> None:
    assert at(4, (0, 10), furthest={"t": {0: 6}}).verdict is Status.REWOUND
    assert at(6, (0, 10), furthest={"t": {0: 6}}).verdict is Status.BACKLOG


def test_a_batch_between_the_ledger_and_sparks_commit_is_no_rewinding() -> None:
    assert at(4, (0, 10), furthest={"t": {0: 6}}, planned={"t": {0: 6}}).verdict is Status.BACKLOG


# --- severity --------------------------------------------------------------------------------------------------------


def test_the_verdict_is_the_worst_in_the_order_of_severity() -> None:
    order = ["OK", "NEW", "BACKLOG", "GROWING", "UNKNOWN", "STUCK", "REWOUND", "LOST", "RECREATED", "AUTH"]
    assert [s.value for s in Status] == order
    for mild, severe in zip(list(Status), list(Status)[1:], strict=False):
        assert Status.worst([mild, severe, mild]) is severe
    assert Status.worst([]) is Status.OK


def test_a_status_needs_no_more_than_the_offsets() -> None:
    assert PartitionLag("t", 0, 5, 0, 5).status is Status.OK
    assert PartitionLag("t", 0, 4, 0, 5).status is Status.BACKLOG
    assert PartitionLag("t", 0, None, 0, 5).status is Status.NEW
    assert PartitionLag("t", 0, 4, None, None).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([DOWN, ConfigError("no topic")], ConfigError),
        ([DOWN, ConfigError("no topic"), DENIED], AuthorizationError),
        ([SluiceError("odd"), DOWN], SluiceError),
    ],
)
def test_of_several_errors_the_one_is_told_that_waiting_mends_least(
    errors: list[SluiceError], told: type[SluiceError]
) -> None:
    states = [TopicState(f"t{n}", "", {}, error=error) for n, error in enumerate(errors)]
    assert type(measure("p", None, states).error) is told
