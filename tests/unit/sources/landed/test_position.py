"""The floor: what it follows from, and that a missing mark only delays it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.sources.landed.position import Mark, Position, settled, thinned

OPEN, ENDED = Mark(10, 100.0, ("3/7", "4/1")), Mark(20, 110.0, ())


@pytest.mark.parametrize(
    ("floor", "marks", "running", "now", "lag", "found"),
    [
        (None, (OPEN,), ["4/1"], 200.0, 0, (None, (OPEN,))),
        (None, (OPEN,), ["3/8", "5/1"], 200.0, 0, (10, ())),  # its transactions have ended
        (5, (OPEN, ENDED), ["3/7"], 200.0, 0, (20, ())),  # a later one may be the first to settle
        (50, (OPEN, ENDED), [], 200.0, 0, (50, ())),  # the floor never goes back
        (None, (ENDED,), [], 119.0, 10, (None, (ENDED,))),
        (None, (ENDED,), [], 120.0, 10, (20, ())),
        (None, (ENDED,), None, 200.0, 0, (None, (ENDED,))),  # a transaction is prepared
    ],
)
def test_landed_floor_follows_from_marks_and_transactions(
    floor: int | None, marks: tuple[Mark, ...], running: list[str] | None, now: float, lag: int, found: object
) -> None:
    assert settled(floor, marks, running, now, lag) == found


def test_landed_marks_do_not_grow_without_end() -> None:
    marks = tuple(Mark(n, float(n), ()) for n in range(100))
    kept = thinned(marks)
    assert len(kept) == 24
    assert (kept[0], kept[-1]) == (marks[0], marks[-1])
    assert set(kept) <= set(marks)


def test_landed_position_survives_its_text() -> None:
    position = Position(7, 3, (OPEN, ENDED), {"table": 16384, "unique": ["ü"]})
    assert Position.from_json(position.to_json()) == position


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_landed_floor_is_never_above_an_unread_row(data: st.DataObject) -> None:
    """A model of a database: transactions take keys and commit in any order, and looks go on in between."""
    open_: dict[str, list[int]] = {}  # virtual id: keys that it took
    visible: set[int] = set()
    read: set[int] = set()
    position = Position()
    number, key = 0, 0
    for step in data.draw(st.lists(st.sampled_from(["begin", "take", "commit", "look"]), max_size=40)):
        if step == "begin":
            number += 1
            open_[f"1/{number}"] = []
        elif step == "take" and open_:
            key += 1
            open_[data.draw(st.sampled_from(sorted(open_)))].append(key)
        elif step == "commit" and open_:
            visible |= set(open_.pop(data.draw(st.sampled_from(sorted(open_)))))
        elif step == "look":
            marks = position.marks
            if visible:
                marks = (*marks, Mark(max(visible), 0.0, tuple(open_)))
            if open_ and data.draw(st.booleans()):  # one ends within the look
                visible |= set(open_.pop(data.draw(st.sampled_from(sorted(open_)))))
            floor, left = settled(position.floor, marks, list(open_), 0.0, 0)
            read |= {k for k in visible if position.floor is None or k >= position.floor}
            position = Position(0, floor, thinned(left))
            assert {k for k in visible if position.floor is not None and k <= position.floor} <= read
    for keys in open_.values():
        visible |= set(keys)
    assert {k for k in visible if position.floor is None or k >= position.floor} | read == visible
