"""``sluice state``, and tables for people: in a pipe, and on a narrow terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.fixtures.golden import Golden
from tests.fixtures.specs import GOOD, write

from sluice.cli import output
from sluice.cli.state import _check_batch, _panes, _show_rows, _wanted
from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.run.checkpoint import Checkpoint

COLUMNS = ["pipeline", "run", "state", *output.COUNTS, "verdict"]
ROW = {
    "pipeline": "orders", "run": "scheduled__2026-11-24T21:44:00.647+00:00", "state": "done", "planned": 3000,
    "written": 2477, "filtered": 0, "quarantined": 523, "absent": 0, "lost": 0, "verdict": None,
}  # fmt: skip
ROWS = [ROW, ROW | {"run": "[bold]x"}]
PART = {"topic": "t" * 30, "partition": 0, "start": 0, "end": 7, "lost": 0}


def printed(
    monkeypatch: pytest.MonkeyPatch, rows: list[Mapping[str, Any]], columns: list[str], width: int, terminal: bool
) -> list[str]:
    file = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=file, width=width, force_terminal=terminal, color_system=None))
    output.print_table(rows, columns)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("width", "terminal", "columns"), [(160, True, COLUMNS), (80, True, ["pipeline", "state"]), (240, False, COLUMNS)]
)
def test_table_with_room_or_in_a_pipe_is_a_table(
    monkeypatch: pytest.MonkeyPatch, width: int, terminal: bool, columns: list[str]
) -> None:
    lines = printed(monkeypatch, ROWS, columns, width, terminal)
    assert len(lines) == 3
    assert lines[0].split() == columns


def test_table_without_room_is_a_paragraph_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, ROWS, COLUMNS, 80, True) == [
        "orders",
        "  run scheduled__2026-11-24T21:44:00.647+00:00 · state done · planned 3,000",
        "  written 2,477 · quarantined 523",
        "orders",
        "  run [bold]x · state done · planned 3,000 · written 2,477 · quarantined 523",
    ]
    assert printed(monkeypatch, [PART], list(PART), 40, True) == ["t" * 30, "  partition 0 · start 0 · end 7"]


def test_windows_and_dedupe_are_shown_with_the_watermark(golden: Golden) -> None:
    moved = {"rows": 1200, "late": 0, "partly_late": 0, "late_by": None, "closed_to": 1_356_998_400_000}
    more: list[dict[str, Any]] = [
        {}, {"closed_to": 0}, {"late": 3, "late_by": 0}, {"late": 3, "partly_late": 2, "late_by": -1000},
        {"former": 2, "former_to": 3_600_000},
    ]  # fmt: skip
    dropped = {"duplicate": 1200, "late": 0, "late_by": None}
    said = [output.of_windows({**moved, **keys}) for keys in more]
    said += [output.of_dedupe({**dropped, **keys}) for keys in ({}, {"late": 3, "late_by": 0})]
    golden("status", "\n".join(said))


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


def test_key_has_the_columns_with_which_the_epoch_began(tmp_path: Path, golden: Golden) -> None:
    spec = load(str(write(tmp_path, GOOD)))
    assert _wanted(spec, {"by": ["k", "l"]}, ["k=a=b", "l="]) == (["k", "l"], {"k": "a=b", "l": ""}, 1001)
    assert _wanted(spec, {"keys": ["id"], "time": "at"}, ["id=1"]) == (["id"], {"id": "1"}, 1001)
    for definition, key in [({"by": ["k"]}, "K=a"), ({"by": ["k"]}, "k"), ({"by": [], "time": "at"}, "k=a")]:
        with pytest.raises(ConfigError) as refused:
            _wanted(spec, definition, [key])
        golden("state", refused.value)


def test_state_refuses_a_batch_that_was_not_committed(tmp_path: Path, golden: Golden) -> None:
    spec = load(str(write(tmp_path, GOOD)))
    _check_batch(spec, [3, 4, 5], 4)
    with pytest.raises(ConfigError) as refused:
        _check_batch(spec, [3, 4, 5], 6)
    golden("state", refused.value)


def test_rows_of_a_key_are_shown_with_columns_of_any_name(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    row = {"key": {"state": "TX", "window_start": None}, "window_start": 0, "window_end": 3_600_000, "state": '{"n":2}'}
    _show_rows({"epoch": 1, "batch": 7, "rows": [row], "more": True})
    said = capsys.readouterr()
    assert "state=TX, window_start=null" in said.out
    golden("state", said.out + said.err)
