"""Windows in a deep audit: the records to recompute them from, and differences in words."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.books import Place, span
from tests.fixtures.golden import Golden

from sluice.audit.windows import EVER, Plan, Verdict, cannot
from sluice.audit.windows import told as findings
from sluice.pipeline import Pipeline, load

HOUR = 3_600_000
WINDOW = {
    "time": "at",
    "size": "1h",
    "by": ["k"],
    "aggregates": {"n": "count(*)"},
    "watermark": "1h",
    "output": "append",
}


@pytest.fixture
def spec(place: Place) -> Pipeline:
    place.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING"}}, window=WINDOW)
    return load(str(place.file))


def difference(expected: bool, found: bool, by: str, there: str) -> dict[str, Any]:
    return {
        "start": 0, "end": HOUR, "by": {"k": "a"}, "expected": expected, "found": found, "values": {"n": [by, there]},
    }  # fmt: skip


def test_difference_names_window_keys_values_and_the_way_out(spec: Pipeline, golden: Golden) -> None:
    found = [difference(expected, there, "2", "3") for expected, there in ((True, True), (True, False), (False, True))]
    problems, unproved = findings(spec, Verdict(9, 5, found, [], {}))
    assert (len(problems), unproved) == (4, [])
    golden("audit", "\n".join(problems))


def test_adjacent_unproved_windows_are_one_line(spec: Pipeline, golden: Golden) -> None:
    doubtful = [[HOUR, 2 * HOUR, "gone", True], [0, HOUR, "gone", False], [9 * HOUR, 10 * HOUR, "gone", True]]
    problems, unproved = findings(spec, Verdict(0, 0, [], doubtful, {"f": "it depends on the order"}))
    assert problems == []
    golden("audit", "\n".join(unproved))


@pytest.fixture
def sessions(place: Place) -> Pipeline:
    window = {key: value for key, value in WINDOW.items() if key != "size"} | {"gap": "1h"}
    place.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING"}}, window=window)
    return load(str(place.file))


def test_sessions_are_named_with_an_interval_to_rerun(sessions: Pipeline, golden: Golden) -> None:
    assert cannot(sessions) is None
    doubtful = [[0, HOUR, "gone", True], [HOUR, 2 * HOUR, "gone", True]]
    (problem,), (unproved,) = findings(sessions, Verdict(9, 1, [difference(True, True, "2", "3")], doubtful, {}))
    golden("audit", f"{problem}\n{unproved}")


def move(spec: Pipeline, epoch: int, batch: int, start: int, end: int, closed: int, **more: Any) -> dict[str, Any]:
    times = [["t", 0, start, end, start * HOUR, (end - 1) * HOUR]] if epoch > 0 else []
    return {
        "epoch": epoch, "batch": batch, "late_by": 0, "closed_to": closed * HOUR, "times": times,
        "aggregation": spec.aggregation, **more,
    }  # fmt: skip


def test_batch_is_recomputed_once_from_its_records(place: Place, spec: Pipeline) -> None:
    moves = [move(spec, 1, 0, 0, 4, 3), move(spec, 1, 0, 0, 4, 3), move(spec, 1, 1, 4, 9, 7)]
    plan = Plan.of(place.ledger, spec, moves, {1: 5}, 12)
    assert [row[:5] for row in plan.live] == [["t", 0, 0, 4, 1], ["t", 0, 4, 9, 1]]
    assert (plan.closed, plan.former, plan.doubtful, plan.version) == ({"1": 7 * HOUR}, {"1": 5}, [], 12)
    lost = Plan.of(place.ledger, spec, [*moves, move(spec, 2, 0, 9, 12, 9, former_to=8)], {1: 5}, 12)
    assert lost.former == {"1": 5, "2": 8}, "the checkpoint of the second epoch is lost"
    other = Plan.of(place.ledger, spec, [move(spec, 1, 0, 2, 4, 3) | {"aggregation": "another"}], {}, 1)
    assert [item[:2] for item in other.doubtful] == [[HOUR + 1, 3 * HOUR + 1]]


def test_records_of_another_aggregation_are_in_no_window(place: Place, spec: Pipeline) -> None:
    moves = [move(spec, 1, 0, 0, 4, 3), move(spec, 1, 1, 4, 9, 7) | {"aggregation": "another"}]
    plan = Plan.of(place.ledger, spec, moves, {}, 12)
    assert [row[:5] for row in plan.recomputed] == [["t", 0, 0, 4, 1]], "it may take another event time"
    assert [row[:5] for row in plan.live] == [["t", 0, 0, 4, 1], ["t", 0, 4, 9, 1]], "an interval may have them"
    ((first, last, *_),) = plan.doubtful
    assert (first, last) == (3 * HOUR + 1, 8 * HOUR + 1), "the windows that may have one of them"
    assert plan.closed == {"1": 7 * HOUR}, "and what it closed is closed"


def test_records_of_another_aggregation_join_no_session(place: Place, sessions: Pipeline) -> None:
    moves = [move(sessions, 1, 0, 0, 4, 3), move(sessions, 1, 1, 4, 9, 7) | {"aggregation": "another"}]
    plan = Plan.of(place.ledger, sessions, moves, {}, 12)
    assert [row[:5] for row in plan.recomputed] == [["t", 0, 0, 4, 1]]
    ((first, last, *_),) = plan.doubtful
    assert (first, last) == (4 * HOUR, 9 * HOUR + 2), "of an event time, and until a gap behind the last one"
    assert plan.closed == {"1": 7 * HOUR}


def test_batch_is_recomputed_with_its_versions_of_joined_tables(place: Place) -> None:
    place.configure(
        decode={"json": {"schema": "at TIMESTAMP, k STRING"}}, window=WINDOW,
        transform={"sql": "SELECT s.* FROM source s LEFT JOIN c ON c.k = s.k"}, tables={"c": {"delta": {"path": "c"}}},
    )  # fmt: skip
    spec = load(str(place.file))
    with place.ledger.acquire("p", "live") as lease:
        for version in (3, 4):  # a driver died in between
            pins = {"c": {"path": "c", "version": version}}
            place.ledger.batch_started(lease, epoch=1, batch=0, ranges=[span(0, 4)], tables=pins)
    plan = Plan.of(place.ledger, spec, [move(spec, 1, 0, 0, 4, 3)], {}, 12)
    assert plan.joined == {"1:0": {"c": {"path": "c", "version": 4}}}
    assert (plan.live[0][4], plan.live[0][10]) == (1, 0)
    again = move(spec, 2, 0, 4, 4, 3, absorbed=[HOUR, 3 * HOUR]) | {"times": []}
    ((first, last, why, _),) = Plan.of(place.ledger, spec, [move(spec, 1, 0, 0, 4, 3), again], {}, 12).doubtful
    assert (first, last) == (1, 3 * HOUR + 1)
    assert "joined once more" in why


def test_sessions_of_an_interval_are_not_compared(place: Place, sessions: Pipeline) -> None:
    with place.ledger.acquire("p", "march", scope="0/1") as lease:
        day = 24 * HOUR
        number = place.ledger.interval_resolved(
            lease, "1970-01-01T00:00:00Z/1970-01-02T00:00:00Z", ranges=[], whole=True, topic_ids={}
        )  # fmt: skip
    made = move(sessions, -number, 0, 0, 0, 30, reach=26 * HOUR, ranges=[])
    plan = Plan.of(place.ledger, sessions, [move(sessions, 1, 0, 0, 30, 30), made], {}, 12)
    assert (plan.owned, plan.made) == ([], [])
    ((first, until, why, also),) = plan.doubtful
    assert (first, until, also) == (0, 26 * HOUR + 1, True), "up to the last end of what came or left"
    assert day < until
    assert "an interval made them again" in why
    del made["reach"]  # it made windows with a size
    ((first, until, *_),) = Plan.of(place.ledger, sessions, [move(sessions, 1, 0, 0, 30, 30), made], {}, 12).doubtful
    assert (first, until) == (0, day), "up to the last that begins in it"


def test_complete_output_is_that_of_the_newest_epoch(place: Place) -> None:
    whole = {key: value for key, value in WINDOW.items() if key != "watermark"} | {"output": "complete"}
    place.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING"}}, window=whole)
    spec = load(str(place.file))
    plan = Plan.of(place.ledger, spec, [move(spec, 1, 0, 0, 4, 3), move(spec, 2, 0, 4, 9, 7)], {}, 1)
    assert ([row[4] for row in plan.live], plan.closed) == ([2], {"2": EVER})
    assert span(4, 9).as_list() == plan.live[0][:4]
