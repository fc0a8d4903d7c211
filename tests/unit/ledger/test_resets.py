"""What the list of runs tells of a reset."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.ledger.resets import told


@pytest.mark.parametrize(
    ("removed", "says"),
    [(0, "the sink has no rows of the pipeline now."), (7, "the pipeline's rows left the sink (7 offsets).")],
)
def test_rows_left_only_a_sink_that_had_some(removed: int, says: str) -> None:
    payload: dict[str, Any] = {
        "positions": {"t": {"0": 5}}, "truncated": True, "removed": removed, "skipped": [], "notes": [], "epoch": 2,
        "reason": "why",
    }  # fmt: skip
    assert told(payload) == f"epoch 2 begins at t-0: 5; {says} Reason: why"
