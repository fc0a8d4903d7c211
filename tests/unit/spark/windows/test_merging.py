"""Windows are made of panes of whole keys, however Arrow cuts their rows and whatever keys have one hash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_spark.windows.merging import Aggregate, Merging

WIDTH, STEP = 3, 10
KINDS = (pa.string(), pa.float64(), pa.string())
NAN = float("nan")
KEYS = st.tuples(
    st.sampled_from(["a", "b", None]), st.sampled_from([1.5, NAN, None]), st.sampled_from(["a", "b", None])
)
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
