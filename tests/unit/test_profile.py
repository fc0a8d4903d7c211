"""Profiles of parts add up to that of the whole."""

from __future__ import annotations

import json
import math
import random

import pytest

from sluice.profile import NO_ROWS, SKETCH, ColumnProfile, Profile


def numbers(*values: float | None) -> ColumnProfile:
    there = [v for v in values if v is not None]
    ends = ("number", min(there), max(there)) if there else (None, None, None)
    return ColumnProfile(len(values), len(values) - len(there), *ends, sum(there), len(there))


def test_parts_add_up_in_any_order() -> None:
    parts = [numbers(1, None, 9), numbers(None, None), numbers(-3.5)]
    for order in (parts, parts[::-1]):
        whole = order[0] | order[1] | order[2]
        assert whole == numbers(1, None, 9, None, None, -3.5)
        assert (whole.null_share, whole.mean) == (0.5, 6.5 / 3)


def test_decimals_are_compared_as_numbers_and_not_as_text() -> None:
    nine, ten = (ColumnProfile(1, 0, "decimal", value, value) for value in ("9.50", "10.00"))
    assert ((nine | ten).low, (nine | ten).high) == ("9.50", "10.00")
    assert (nine | ten).end("high") == 10.0


def test_what_one_part_does_not_know_is_unknown_of_the_whole() -> None:
    blind = ColumnProfile(2, 0)  # values, but no ends
    assert (numbers(1, 2) | blind) == ColumnProfile(4, 0)
    assert (numbers(1, 2) | ColumnProfile(2)).nulls is None
    widened = numbers(1) | ColumnProfile(1, 0, "decimal", "2", "2")
    assert (widened.kind, widened.low) == (None, None)


def test_a_column_that_came_later_has_fewer_rows() -> None:
    whole = Profile(5, {"a": numbers(1, 2, 3, 4, 5)}) | Profile(2, {"a": numbers(6, 7), "b": numbers(1, None)})
    assert (whole.rows, whole.columns["a"].rows, whole.columns["b"].rows) == (7, 7, 2)
    assert whole.columns["b"].null_share == 0.5
    assert Profile.from_dict(json.loads(json.dumps(whole.as_dict()))) == whole
    assert Profile.from_dict(NO_ROWS.as_dict()) == NO_ROWS


def sketch(hashes: list[int]) -> ColumnProfile:
    return ColumnProfile(len(hashes), 0, sketch=tuple(sorted(set(hashes))[:SKETCH]))


def test_few_distinct_values_are_counted_and_many_are_estimated_over_batches() -> None:
    chance = random.Random(7)
    hashes = [chance.getrandbits(64) for _ in range(50_000)]
    assert (sketch(hashes[:30]) | sketch(hashes[10:40])).distinct == 40
    both = sketch(hashes[:30_000]) | sketch(hashes[20_000:])
    assert both.distinct == pytest.approx(50_000, rel=4 / math.sqrt(SKETCH - 2))
    assert not both.exact
    assert sketch(hashes[:3]).exact
    assert ColumnProfile.from_dict(both.as_dict(), 60_000) == both
