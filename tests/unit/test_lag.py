"""Lag, from positions and the broker's answer."""

from __future__ import annotations

import pytest

from sluice.kafka.cluster import PartitionState, TopicState
from sluice.lag import Limits, measure


def topic(*spans: tuple[int, int], name: str = "t") -> TopicState:
    return TopicState(name, "id", {p: PartitionState(*span) for p, span in enumerate(spans)})


def test_lag_is_what_can_still_be_read() -> None:
    backlog = measure("p", {"t": {0: 4, 1: 10}}, [topic((0, 10), (0, 10))])
    assert [p.records for p in backlog.partitions] == [6, 0]
    assert backlog.records == 6
    assert not backlog.needs_a_run


def test_what_retention_took_is_lost_and_no_lag_and_calls_for_a_run() -> None:
    backlog = measure("p", {"t": {0: 4}}, [topic((7, 10))])
    (part,) = backlog.partitions
    assert (part.records, part.lost, part.beyond) == (3, 3, 0)
    assert backlog.needs_a_run
    assert backlog.worth_a_run


def test_an_emptied_log_is_lost_up_to_its_end() -> None:
    (part,) = measure("p", {"t": {0: 4}}, [topic((10, 10))]).partitions
    assert (part.records, part.lost) == (0, 6)


def test_a_position_beyond_the_end_is_never_a_negative_lag() -> None:
    backlog = measure("p", {"t": {0: 12}}, [topic((0, 10))])
    (part,) = backlog.partitions
    assert (part.records, part.lost, part.beyond) == (0, 0, 2)
    assert backlog.needs_a_run


@pytest.mark.parametrize(
    ("positions", "starting", "lag"),
    [
        (None, "earliest", 7),
        (None, "latest", 0),
        ({"t": {}}, "earliest", 7),
        ({"t": {}}, "latest", 7),  # a partition added after the first run is read from its beginning
    ],
)
def test_a_partition_without_a_position_counts_from_where_the_next_run_starts(
    positions: dict[str, dict[int, int]] | None, starting: str, lag: int
) -> None:
    assert measure("p", positions, [topic((3, 10))], starting).records == lag  # type: ignore[arg-type]


def test_a_limit_must_be_passed_not_met() -> None:
    for limit, over in ((6, False), (5, True)):
        assert measure("p", {"t": {0: 4}}, [topic((0, 10))], limits=Limits(limit)).over is over


def test_the_printed_form_names_each_partition() -> None:
    form = measure("p", {"t": {0: 4}}, [topic((5, 10)), topic((0, 2), name="u")]).as_dict()
    assert form["lag"] == 7
    assert form["partitions"][0].items() >= {
        "topic": "t", "partition": 0, "position": 4, "start": 5, "end": 10, "lag": 5, "lost": 1,
    }.items()  # fmt: skip
