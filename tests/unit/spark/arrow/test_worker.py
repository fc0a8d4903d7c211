"""What a worker counts of the rows that it made."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice_spark.arrow.worker import _distinct

OFFSETS = st.integers(0, 2**63 - 1) | st.integers(0, 5)


@given(st.lists(OFFSETS, min_size=1))
def test_offsets_are_counted_once_in_whatever_order_a_transform_leaves_its_rows(offsets: list[int]) -> None:
    assert _distinct(np.array(offsets, dtype=np.int64)) == (min(offsets), max(offsets), len(set(offsets)))
