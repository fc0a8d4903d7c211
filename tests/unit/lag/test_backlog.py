"""The lag of a pipeline: whether it is over its limits and worth a run, and its printed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.lag.conftest import DOWN, NOW, ago, at, topic

from sluice.lag import Limits, measure
from sluice.sources.state import TopicState


def test_a_limit_must_be_passed_not_met() -> None:
    for limit, over in ((6, False), (5, True)):
        assert at(4, (0, 10), limits=Limits(limit)).over is over


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


def test_what_a_run_is_reading_is_held_and_not_started_again() -> None:
    assert at(4, (0, 10)).worth_a_run
    held = at(4, (0, 10), running="r1")
    assert (held.over, held.worth_a_run, held.running) == (True, False, "r1")


def test_no_run_is_worth_it_while_a_verdict_holds_the_pipeline() -> None:
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
