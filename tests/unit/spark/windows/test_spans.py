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


def found(spans: Any, values: Any) -> dict[tuple[int, int], Any]:
    return dict(zip(zip(spans.keys.tolist(), spans.ends.tolist(), strict=True), values.tolist(), strict=True))


@settings(max_examples=100, deadline=None)
@given(stores(st.integers(-(2**62), 2**62)))
def test_windows_of_integers_are_exact_sums(given: tuple[Any, int, int, int]) -> None:
    spans = spanned(*given)
    sums = found(spans, added(spans, np.array([v for *_, v in given[0]], dtype=np.int64)))
    assert sums == {at: sum(values) for at, values in naive(*given).items()}


@settings(max_examples=100, deadline=None)
@given(stores(st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_windows_of_doubles_do_not_drift(given: tuple[Any, int, int, int]) -> None:
    spans, values = spanned(*given), np.array([v for *_, v in given[0]], dtype=np.float64)
    sums, least = (found(spans, merged(spans, values, merge)) for merge in (np.add, np.minimum))
    expected = naive(*given)
    assert sums.keys() == expected.keys()
    for at, of in expected.items():
        assert abs(sums[at] - math.fsum(of)) <= len(of) * 2**-52 * math.fsum(map(abs, of))
        assert least[at] == min(of)


@settings(max_examples=70, deadline=None)
@given(stores(st.text("ab", max_size=2)))
def test_windows_merge_panes_in_their_order(given: tuple[Any, int, int, int]) -> None:
    spans = spanned(*given)
    texts = found(spans, merged(spans, np.array([v for *_, v in given[0]], dtype=object), np.add))
    assert texts == {at: "".join(values) for at, values in naive(*given).items()}


@pytest.mark.parametrize("huge", [1e16, math.inf])
def test_windows_keep_nothing_of_a_large_value_that_left(huge: float) -> None:
    rows = [(0, pane, huge if pane == 3 else 0.25) for pane in range(100)]
    spans = spanned(rows, 10, 20, 90)
    values = np.array([v for *_, v in rows])
    assert set(merged(spans, values, np.add).tolist()) == {2.5}
