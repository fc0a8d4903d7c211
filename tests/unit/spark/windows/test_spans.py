"""Windows made of panes are what plain Python makes of the same panes."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_spark.windows.spans import added, merged, spans_of

KEYS, PANES = st.integers(0, 3), st.integers(-40, 40)


@st.composite
def stores(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[list[tuple[int, int, Any]], int, int, int]:
    rows = draw(st.dictionaries(st.tuples(KEYS, PANES), values, max_size=60))
    first = draw(st.integers(-50, 50))
    return (
        [(k, p, v) for (k, p), v in sorted(rows.items())],
        draw(st.integers(2, 12)), first, first + draw(st.integers(0, 100)),
    )  # fmt: skip


def naive(rows: list[tuple[int, int, Any]], width: int, first: int, last: int) -> dict[tuple[int, int], list[Any]]:
    found: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for key, pane, value in rows:
        for end in range(max(pane + 1, first), min(pane + width, last) + 1):
            found[key, end].append(value)
    return found


def spanned(rows: list[tuple[int, int, Any]], width: int, first: int, last: int) -> Any:
    keys, panes = (np.array([row[n] for row in rows], dtype=np.int64) for n in (0, 1))
    return spans_of(keys, panes, width, first, last)


@settings(max_examples=300, deadline=None)
@given(stores(st.integers(-(2**62), 2**62)))
def test_sums_are_exact(given: tuple[Any, int, int, int]) -> None:
    rows, width, first, last = given
    spans = spanned(rows, width, first, last)
    made = added(spans, np.array([v for *_, v in rows], dtype=np.int64))
    found = dict(zip(zip(spans.keys.tolist(), spans.ends.tolist(), strict=True), made.tolist(), strict=True))
    assert found == {at: sum(values) for at, values in naive(rows, width, first, last).items()}


@settings(max_examples=300, deadline=None)
@given(stores(st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_doubles_do_not_drift(given: tuple[Any, int, int, int]) -> None:
    rows, width, first, last = given
    spans = spanned(rows, width, first, last)
    values = np.array([v for *_, v in rows], dtype=np.float64)
    sums, least = merged(spans, values, np.add), merged(spans, values, np.minimum)
    expected = naive(rows, width, first, last)
    assert len(spans.ends) == len(expected)
    for key, end, total, low in zip(spans.keys.tolist(), spans.ends.tolist(), sums, least, strict=True):
        of = expected[key, end]
        assert abs(total - math.fsum(of)) <= len(of) * 2**-52 * math.fsum(map(abs, of))
        assert low == min(of)


@settings(max_examples=200, deadline=None)
@given(stores(st.text("ab", max_size=2)))
def test_panes_are_merged_in_their_order(given: tuple[Any, int, int, int]) -> None:
    rows, width, first, last = given
    spans = spanned(rows, width, first, last)
    made = merged(spans, np.array([v for *_, v in rows], dtype=object), np.add)
    found = dict(zip(zip(spans.keys.tolist(), spans.ends.tolist(), strict=True), made.tolist(), strict=True))
    assert found == {at: "".join(values) for at, values in naive(rows, width, first, last).items()}


@pytest.mark.parametrize("huge", [1e16, math.inf])
def test_a_large_value_that_left_leaves_nothing_behind(huge: float) -> None:
    rows = [(0, pane, huge if pane == 3 else 0.25) for pane in range(100)]
    spans = spanned(rows, 10, 20, 90)
    values = np.array([v for *_, v in rows])
    assert set(merged(spans, values, np.add).tolist()) == {2.5}
