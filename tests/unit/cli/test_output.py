"""What commands print for people: wide tables stay tables in a pipe, and can be read on a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sluice.cli import output

COLUMNS = ["pipeline", "run", "state", *output.COUNTS, "verdict"]
ROW = {
    "pipeline": "orders", "run": "scheduled__2026-11-24T21:44:00.647+00:00", "state": "done", "planned": 3000,
    "written": 2477, "filtered": 0, "quarantined": 523, "absent": 0, "lost": 0, "verdict": None,
}  # fmt: skip


def told(monkeypatch: pytest.MonkeyPatch, *, width: int, terminal: bool, columns: list[str] = COLUMNS) -> list[str]:
    file = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=file, width=width, force_terminal=terminal, color_system=None))
    output.print_table([ROW, ROW | {"run": "[bold]x"}], columns)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_each_row_is_a_paragraph_where_a_table_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, width=80, terminal=True) == [
        "orders",
        "  run scheduled__2026-11-24T21:44:00.647+00:00 · state done · planned 3,000",
        "  written 2,477 · quarantined 523",
        "orders",
        "  run [bold]x · state done · planned 3,000 · written 2,477 · quarantined 523",
    ]


def test_partition_0_is_told_and_counts_that_are_zero_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=file, width=40, force_terminal=True, color_system=None))
    row = {"topic": "t" * 30, "partition": 0, "start": 0, "end": 7, "lost": 0}
    output.print_table([row], list(row))
    assert [line.strip() for line in file.getvalue().splitlines()] == ["t" * 30, "partition 0 · start 0 · end 7"]


def test_a_table_is_one_where_it_has_room_or_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for width, terminal, columns in ((160, True, COLUMNS), (80, True, ["pipeline", "state"]), (240, False, COLUMNS)):
        lines = told(monkeypatch, width=width, terminal=terminal, columns=columns)
        assert len(lines) == 3
        assert lines[0].split() == columns


def test_what_a_run_did_to_windows_is_told_with_the_watermark() -> None:
    moved = {"rows": 1200, "late": 0, "partly_late": 0, "late_by": None, "closed_to": 1_356_998_400_000}
    assert output.of_windows(moved) == "1,200 windows written; those up to 2013-01-01T00:00:00Z are closed"
    assert output.of_windows({**moved, "closed_to": 0}) == "1,200 windows written"
    assert output.of_windows({**moved, "late": 3, "late_by": 0}).endswith(
        "; 3 records were late (watermark 1970-01-01T00:00:00Z)"
    )
    partly = output.of_windows({**moved, "late": 3, "partly_late": 2, "late_by": -1000})
    assert partly.endswith("; 3 records were late, 2 more for some of their windows (watermark 1969-12-31T23:59:59Z)")
    former = output.of_windows({**moved, "former": 2, "former_to": 3_600_000})
    assert former.endswith(
        "; 2 records were filtered, because their windows, up to 1970-01-01T01:00:00Z, were begun before the reset"
    )


def test_what_dedupe_dropped_is_told_with_the_watermark() -> None:
    dropped = {"duplicate": 1200, "late": 0, "late_by": None}
    assert output.of_dedupe(dropped) == "1,200 duplicates were filtered"
    assert output.of_dedupe({**dropped, "late": 3, "late_by": 0}) == (
        "1,200 duplicates were filtered, 3 records because they were late (watermark 1970-01-01T00:00:00Z)"
    )
