"""Limits and statuses of the lag, and its form for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.lag.conftest import DOWN, NOW, ago, at, topic

from sluice.lag import Limits, PartitionLag, Status, measure
from sluice.pipeline.starting import Lag
from sluice.sources.state import TopicState


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
def test_limits_of_the_pipeline_file(written: dict[str, Any], limits: Limits) -> None:
    assert Limits.of(Lag.model_validate(written)) == limits


def test_limits_in_words() -> None:
    limits = Limits(1000, timedelta(minutes=15), 0.5, "all")
    assert str(limits) == "more than 1,000 records and older than 15 min and over 50% of the retention time"


def test_status_of_a_partition_by_its_offsets() -> None:
    assert PartitionLag("t", 0, 5, 0, 5).status is Status.OK
    assert PartitionLag("t", 0, 4, 0, 5).status is Status.BACKLOG
    assert PartitionLag("t", 0, None, 0, 5).status is Status.NEW
    assert PartitionLag("t", 0, 4, None, None).status is Status.UNKNOWN


def test_worst_status_in_the_order_of_severity() -> None:
    order = ["OK", "NEW", "BACKLOG", "GROWING", "UNKNOWN", "STUCK", "REWOUND", "LOST", "RECREATED", "AUTH"]
    assert [s.value for s in Status] == order
    for mild, severe in zip(list(Status), list(Status)[1:], strict=False):
        assert Status.worst([mild, severe, mild]) is severe
    assert Status.worst([]) is Status.OK


def test_backlog_as_dict_names_each_partition() -> None:
    form = measure("p", {"t": {0: 4}}, [topic((5, 10)), topic((0, 2), name="u")], now=NOW).as_dict()
    assert (form["lag"], form["verdict"], form["at"]) == (7, "LOST", "2026-11-21T12:00:00.000+00:00")
    assert form["partitions"][0] == {
        "topic": "t", "partition": 0, "status": "LOST", "position": 4, "start": 5, "end": 10, "lag": 5, "lost": 1,
        "beyond": 0, "pending": None, "age": None, "share": None, "clock": None, "error": None,
    }  # fmt: skip


def test_backlog_as_dict_has_the_error_and_the_limits() -> None:
    form = measure("p", {"t": {0: 4}}, [TopicState("t", "", {}, error=DOWN)], limits=Limits(5, timedelta(minutes=2)))
    found = form.as_dict()
    assert (found["error"]["type"], found["error"]["exit_code"]) == ("SourceUnreachableError", 20)
    assert found["limits"] == {"max_records": 5, "max_age": 120.0, "max_retention_share": None, "match": "any"}
    assert found["lag"] is None


def test_run_is_not_worth_it_beside_another_or_a_hold() -> None:
    assert at(4, (0, 10)).worth_a_run
    busy = at(4, (0, 10), running="r1")
    assert (busy.over, busy.worth_a_run, busy.running) == (True, False, "r1")
    held = replace(at(4, (0, 10)), held="bad")
    assert (held.over, held.worth_a_run, held.as_dict()["held"]) == (True, False, "bad")


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
