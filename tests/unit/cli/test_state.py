"""``sluice state`` tells of the epoch's windows, also if the pipeline file has others by now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.specs import GOOD, write

from sluice.cli.state import _check_batch, _panes, _show_rows, _wanted
from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.run.checkpoint import Checkpoint

SLIDING: dict[str, Any] = {"time": "at", "size": 1800.0, "slide": 600.0, "by": ["k"]}


@pytest.mark.parametrize(
    ("noted", "definition", "spans"),
    [
        ({"parts": [["count", "bigint"]]}, SLIDING, (1_800_000, 600_000, 0)),
        ({"parts": [["count", "bigint"]]}, {**SLIDING, "slide": 0.5}, (1_800_000, 500, 0)),
        ({"parts": [["count", "bigint"]]}, {**SLIDING, "output": "complete"}, (1_800_000, 600_000, -(1 << 52))),
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


def test_a_key_is_told_by_its_columns(tmp_path: Path) -> None:
    """They are those with which the epoch began."""
    spec = load(str(write(tmp_path, GOOD)))
    assert _wanted(spec, {"by": ["k", "l"]}, ["k=a=b", "l="]) == (["k", "l"], {"k": "a=b", "l": ""}, 1001)
    assert _wanted(spec, {"keys": ["id"], "time": "at"}, ["id=1"]) == (["id"], {"id": "1"}, 1001)
    for definition, key, said, then in [
        ({"by": ["k"]}, "K=a", "keys have no column 'K'", "--key k=VALUE"),
        ({"by": ["k"]}, "k", "'k' is not COLUMN=VALUE", "--key k=VALUE"),
        ({"by": [], "time": "at"}, "k=a", "keys have no column 'k'", "leave --key out"),
    ]:
        with pytest.raises(ConfigError, match=said) as refused:
            _wanted(spec, definition, [key])
        assert then in refused.value.next_step


def test_a_batch_that_was_not_committed_is_refused(tmp_path: Path) -> None:
    spec = load(str(write(tmp_path, GOOD)))
    _check_batch(spec, [3, 4, 5], 4)
    with pytest.raises(ConfigError, match="has committed no batch 6") as refused:
        _check_batch(spec, [3, 4, 5], 6)
    assert "its batches are 3 to 5" in refused.value.next_step


def test_rows_of_a_key_are_shown_whatever_its_columns_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    """Not everything that is kept may be shown, but that is said."""
    row = {"key": {"state": "TX", "window_start": None}, "window_start": 0, "window_end": 3_600_000, "state": '{"n":2}'}
    _show_rows({"epoch": 1, "batch": 7, "rows": [row], "more": True})
    said = capsys.readouterr()
    assert "state=TX, window_start=null" in said.out
    assert '{"n":2}' in said.out
    assert "1970-01-01T01:00:00Z" in said.out
    assert "there are more: add --key" in said.err
