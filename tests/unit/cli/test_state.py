"""``sluice state`` tells of the epoch's windows, also if the pipeline file has others by now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cli.state import _panes
from sluice.run.checkpoint import Checkpoint

SLIDING: dict[str, Any] = {"time": "at", "size": 1800.0, "slide": 600.0, "by": ["k"]}


@pytest.mark.parametrize(
    ("noted", "definition", "spans"),
    [
        ({"parts": [["count", "bigint"]]}, SLIDING, (1_800_000, 600_000, 0)),
        ({"parts": [["count", "bigint"]]}, {**SLIDING, "slide": 0.5}, (1_800_000, 500, 0)),
        (None, SLIDING, ()),  # Spark's own windows
        (None, {"time": "at", "gap": 600.0}, ()),
        (None, {}, ()),  # dedupe, or begun without any
    ],
)
def test_panes_are_those_of_the_epoch(
    tmp_path: Path, noted: dict[str, Any] | None, definition: dict[str, Any], spans: tuple[int, ...]
) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.note_panes(noted)
    assert _panes(checkpoint, definition) == spans
