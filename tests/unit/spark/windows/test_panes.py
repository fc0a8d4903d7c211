"""Windows made of panes are those that plain Python makes of the same panes, however Arrow cuts their rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_spark.windows.merge_panes import Aggregate, Merging
from sluice_spark.windows.spans import added, merged, spans_of

NUMBERS, PANES = st.integers(0, 3), st.integers(-40, 40)


@st.composite
def stores(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[list[tuple[int, int, Any]], int, int, int]:
    rows = draw(st.dictionaries(st.tuples(NUMBERS, PANES), values, max_size=60))
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


WIDTH, STEP = 3, 10
KINDS = (pa.string(), pa.float64(), pa.string())
KEYS = st.tuples(*map(st.sampled_from, (["a", "b", None], [1.5, math.nan, None], ["a", "b", None])))
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 8), st.booleans(), st.none() | st.integers(-9, 9)), max_size=40)
CUTS = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def known(key: Sequence[Any]) -> tuple[Any, ...]:
    return tuple("nan" if isinstance(part, float) and math.isnan(part) else part for part in key)


def hashed(key: Sequence[Any], hashes: int) -> int:
    """Return a hash that cannot tell which of the columns is null, as Spark's cannot."""
    return sum(map(ord, "".join(str(part) for part in known(key) if part is not None))) % hashes - hashes // 2


def windows(rows: list[Any], sizes: list[int], first: int, last: int, hashes: int = 1000) -> list[dict[str, Any]]:
    """Merge rows that are cut into batches of these sizes, again and again."""
    there = sorted(rows, key=lambda row: hashed(row[0], hashes))
    schema = pa.schema(
        [("h", pa.int64()), ("p", pa.int64()), *((f"k{n}", kind) for n, kind in enumerate(KINDS)), ("v", pa.int64())]
    )
    records = [(hashed(key, hashes), 2 * pane + new, *key, value) for key, pane, new, value in there]
    columns = [pa.array([r[n] for r in records], field.type) for n, field in enumerate(schema)]
    whole, batches, begin, turn = pa.RecordBatch.from_arrays(columns, schema=schema), [], 0, 0
    while begin < len(records):
        batches.append(whole.slice(begin, sizes[turn % len(sizes)]))
        begin, turn = begin + sizes[turn % len(sizes)], turn + 1
    merging = Merging(len(KINDS), (Aggregate("sum", (0,)), Aggregate("max", (0,))), WIDTH, STEP, first, last)
    return [row for batch in merging.of(iter([*batches, whole.slice(0, 0)])) for row in batch.to_pylist()]


def expected(rows: list[Any], first: int, last: int) -> list[tuple[Any, ...]]:
    panes: dict[Any, dict[int, Any]] = {}
    for key, pane, _, value in sorted(rows, key=lambda row: row[2]):  # the newer one stays
        panes.setdefault(known(key), {})[pane] = value
    found = []
    for key, there in panes.items():
        for end in range(first, last + 1):
            values = [there[pane] for pane in range(end - WIDTH, end) if pane in there]
            numbers = [value for value in values if value is not None]
            if values:
                total, most = (sum(numbers), max(numbers)) if numbers else (None, None)
                found.append(((end - WIDTH) * STEP, end * STEP, *key, total, most))
    return found


@settings(max_examples=80, deadline=None)
@given(rows=ROWS, sizes=CUTS, hashes=st.sampled_from([1, 2, 1000]))
def test_merging_keeps_a_key_whole_however_its_rows_are_cut(rows: list[Any], sizes: list[int], hashes: int) -> None:
    rows = list({(known(row[0]), *row[1:3]): row for row in rows}.values())
    found = windows(rows, sizes, 2, 9, hashes)
    made = [(row["start"], row["end"], *known([row[f"c{n}"] for n in range(5)])) for row in found]
    assert sorted(made, key=str) == sorted(expected(rows, 2, 9), key=str)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_merging_keeps_keys_of_one_hash_apart(size: int) -> None:
    one, two = ("a", None, None), (None, None, "a")
    assert hashed(one, 1000) == hashed(two, 1000)
    rows = [(key, pane, False, pane) for pane in range(4) for key in (one, two)]
    found = windows(rows, [size], 3, 3)
    assert [(row["c0"], row["c2"], row["c3"]) for row in found] == [("a", None, 3), (None, "a", 3)]


def test_merging_holds_rows_of_one_hash_only() -> None:
    rows = [((name, None, None), pane, False, 1) for name in "abcd" for pane in range(6)]
    taken = []

    def read() -> Any:
        for row in rows:
            taken.append(row)
            hashes, place = pa.array([ord(row[0][0])]), pa.array([2 * row[1]])
            keys = [pa.array([part], kind) for part, kind in zip(row[0], KINDS, strict=True)]
            yield pa.RecordBatch.from_arrays([hashes, place, *keys, pa.array([1])], list("hpabcv"))

    merging = Merging(len(KINDS), (Aggregate("sum", (0,)),), WIDTH, STEP, 3, 6)
    next(merging.of(read()))
    assert len(taken) == 7  # the first row of the second key
