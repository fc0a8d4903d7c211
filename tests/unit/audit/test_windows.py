"""Windows in a deep audit: the records to recompute them from, and differences in words."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.books import Place, span
from tests.fixtures.golden import Golden

from sluice.audit.windows import EVER, Plan, Verdict, cannot
from sluice.audit.windows import told as findings
from sluice.ledger.events import BatchStarted
from sluice.pipeline import Pipeline, load

HOUR = 3_600_000
WINDOW: dict[str, Any] = {
    "time": "at", "size": "1h", "by": ["k"], "aggregates": {"n": "count(*)"}, "watermark": "1h", "output": "append",
}  # fmt: skip


def configured(place: Place, without: str = "", window: dict[str, str] | None = None, **keys: Any) -> Pipeline:
    """Return a pipeline with windows, but for one key of theirs and with others."""
    kept = {key: value for key, value in WINDOW.items() if key != without} | (window or {})
    place.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING"}}, window=kept, **keys)
    return load(place.file)


@pytest.fixture
def spec(place: Place) -> Pipeline:
    return configured(place)


@pytest.fixture
def sessions(place: Place) -> Pipeline:
    return configured(place, "size", {"gap": "1h"})


def difference(expected: bool, found: bool) -> dict[str, Any]:
    return {
        "start": 0, "end": HOUR, "by": {"k": "a"}, "expected": expected, "found": found, "values": {"n": ["2", "3"]},
    }  # fmt: skip


def test_window_audit_names_keys_values_and_the_way_out(spec: Pipeline, golden: Golden) -> None:
    found = [difference(*there) for there in ((True, True), (True, False), (False, True))]
    problems, unproved = findings(spec, Verdict(9, 5, found, [], {}))
    assert (len(problems), unproved) == (4, [])
    golden("audit", "\n".join(problems))


def test_window_audit_has_one_line_for_adjacent_unproved_windows(spec: Pipeline, golden: Golden) -> None:
    doubtful = [[HOUR, 2 * HOUR, "gone", True], [0, HOUR, "gone", False], [9 * HOUR, 10 * HOUR, "gone", True]]
    problems, unproved = findings(spec, Verdict(0, 0, [], doubtful, {"f": "it depends on the order"}))
    assert problems == []
    golden("audit", "\n".join(unproved))


def test_window_audit_names_sessions_with_an_interval_to_rerun(sessions: Pipeline, golden: Golden) -> None:
    assert cannot(sessions) is None
    doubtful = [[0, HOUR, "gone", True], [HOUR, 2 * HOUR, "gone", True]]
    (problem,), (unproved,) = findings(sessions, Verdict(9, 1, [difference(True, True)], doubtful, {}))
    golden("audit", f"{problem}\n{unproved}")


def move(spec: Pipeline, epoch: int, batch: int, start: int, end: int, closed: int, **more: Any) -> dict[str, Any]:
    times = [["t", 0, start, end, start * HOUR, (end - 1) * HOUR]] if epoch > 0 else []
    return {
        "epoch": epoch, "batch": batch, "late_by": 0, "closed_to": closed * HOUR, "times": times,
        "aggregation": spec.aggregation, **more,
    }  # fmt: skip


def planned(place: Place, spec: Pipeline, *moves: dict[str, Any], former: dict[int, int] | None = None) -> Plan:
    return Plan.of(place.ledger, spec, moves, former or {}, 12)


def test_window_audit_recomputes_a_batch_once_from_its_records(place: Place, spec: Pipeline) -> None:
    moves = [move(spec, 1, 0, 0, 4, 3), move(spec, 1, 0, 0, 4, 3), move(spec, 1, 1, 4, 9, 7)]
    plan = planned(place, spec, *moves, former={1: 5})
    assert [row[:5] for row in plan.live] == [["t", 0, 0, 4, 1], ["t", 0, 4, 9, 1]]
    assert (plan.closed, plan.former, plan.doubtful, plan.version) == ({"1": 7 * HOUR}, {"1": 5}, [], 12)
    lost = planned(place, spec, *moves, move(spec, 2, 0, 9, 12, 9, former_to=8), former={1: 5})
    assert lost.former == {"1": 5, "2": 8}, "the checkpoint of the second epoch is lost"
    other = planned(place, spec, move(spec, 1, 0, 2, 4, 3, aggregation="another"))
    assert [item[:2] for item in other.doubtful] == [[HOUR + 1, 3 * HOUR + 1]]


@pytest.mark.parametrize(
    ("kind", "doubtful"),
    [
        ("spec", (3 * HOUR + 1, 8 * HOUR + 1)),  # the windows that may have one of them
        ("sessions", (4 * HOUR, 9 * HOUR + 2)),  # of an event time, and until a gap behind the last one
    ],
)
def test_window_audit_recomputes_no_other_aggregation(request: Any, place: Place, kind: str, doubtful: Any) -> None:
    spec = request.getfixturevalue(kind)
    plan = planned(place, spec, move(spec, 1, 0, 0, 4, 3), move(spec, 1, 1, 4, 9, 7, aggregation="another"))
    assert [row[:5] for row in plan.recomputed] == [["t", 0, 0, 4, 1]], "it may take another event time"
    assert [row[:5] for row in plan.live] == [["t", 0, 0, 4, 1], ["t", 0, 4, 9, 1]], "an interval may have them"
    ((*times, _, _),) = plan.doubtful
    assert (tuple(times), plan.closed) == (doubtful, {"1": 7 * HOUR}), "and what it closed is closed"


def test_window_audit_recomputes_a_batch_with_its_versions_of_joined_tables(place: Place) -> None:
    joins = {"sql": "SELECT s.* FROM source s LEFT JOIN c ON c.k = s.k"}
    spec = configured(place, transform=joins, tables={"c": {"delta": {"path": "c"}}})
    with place.ledger.acquire("p", "live") as lease:
        for version in (3, 4):  # a driver died in between
            pins = {"c": {"path": "c", "version": version}}
            place.ledger.record(lease, BatchStarted(epoch=1, batch=0, ranges=[span(0, 4)], tables=pins))
    first = move(spec, 1, 0, 0, 4, 3)
    plan = planned(place, spec, first)
    assert plan.joined == {"1:0": {"c": {"path": "c", "version": 4}}}
    assert (plan.live[0][4], plan.live[0][10]) == (1, 0)
    again = move(spec, 2, 0, 4, 4, 3, absorbed=[HOUR, 3 * HOUR], times=[])
    ((*times, why, _),) = planned(place, spec, first, again).doubtful
    assert (times, "joined once more" in why) == ([1, 3 * HOUR + 1], True)


def test_window_audit_does_not_compare_sessions_of_an_interval(place: Place, sessions: Pipeline) -> None:
    day, march = 24 * HOUR, "1970-01-01T00:00:00Z/1970-01-02T00:00:00Z"
    with place.ledger.acquire("p", "march", scope="0/1") as lease:
        number = place.ledger.interval_resolved(lease, march, ranges=[], whole=True, topic_ids={})
    live, made = move(sessions, 1, 0, 0, 30, 30), move(sessions, -number, 0, 0, 0, 30, reach=26 * HOUR, ranges=[])
    plan = planned(place, sessions, live, made)
    assert (plan.owned, plan.made) == ([], [])
    ((first, until, why, also),) = plan.doubtful
    assert (first, until, also) == (0, 26 * HOUR + 1, True), "up to the last end of what came or left"
    assert "an interval made them again" in why
    del made["reach"]  # it made windows with a size
    ((first, until, *_),) = planned(place, sessions, live, made).doubtful
    assert (first, until) == (0, day), "up to the last that begins in it"


def test_window_audit_takes_complete_output_from_the_newest_epoch(place: Place) -> None:
    spec = configured(place, "watermark", {"output": "complete"})
    plan = planned(place, spec, move(spec, 1, 0, 0, 4, 3), move(spec, 2, 0, 4, 9, 7))
    assert ([row[:5] for row in plan.live], plan.closed) == ([[*span(4, 9).as_list(), 2]], {"2": EVER})
