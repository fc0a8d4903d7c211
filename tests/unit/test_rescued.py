"""Counting unknown fields."""

from __future__ import annotations

from sluice.rescued import NONE, Rescued


def test_records_and_their_fields_add_up() -> None:
    one = Rescued.of([("a", "b"), ("a",)])
    assert one == Rescued(2, {"a": 2, "b": 1})
    assert one | Rescued.of([("b", "c")], [5]) == Rescued(7, {"b": 6, "c": 5, "a": 2})
    assert one | NONE == NONE | one == one
    assert one.as_dict() == {"records": 2, "fields": {"a": 2, "b": 1}}


def test_however_many_fields_there_are_it_stays_small() -> None:
    found = NONE
    for n in range(200):
        found |= Rescued.of([(f"{n:03}" + "x" * 10_000, "often")])
    assert found.records == 200
    assert len(found.fields) == 20
    assert next(iter(found.fields.items())) == ("often", 200)
    assert max(map(len, found.fields)) == 101
