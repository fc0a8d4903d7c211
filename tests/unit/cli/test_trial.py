"""``sluice test``: what it refuses, compares and writes, around a run that is stood in for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import trial
from sluice.errors import ExitCode

ROWS = ['{"id": 1, "name": "ä"}', '{"id": 2, "name": null}']


@dataclass
class Found:
    """The outcome of a test."""

    rows: list[dict[str, Any]] = field(default_factory=lambda: [{"id": 1}, {"id": 2}])
    refused: list[dict[str, Any]] = field(default_factory=list)
    account: dict[str, Any] = field(
        default_factory=lambda: {"planned": 2, "written": 2, "filtered": 0, "quarantined": 0, "verdict": "failed"}
    )
    failed: list[str] = field(default_factory=lambda: ["min_records: too few"])

    def lines(self) -> list[str]:
        return ROWS


@pytest.fixture
def tried(sluice: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(trial, "imported", lambda _: lambda pipeline, lines: Found())
    (tmp_path / "records").write_text("{}\n{}")
    return lambda *more: sluice("test", "p", "--records", str(tmp_path / "records"), *more)


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        ("\n".join(ROWS), 0),
        ('{"name": null, "id": 2}\n\n{"name": "\\u00e4", "id": 1}\n', 0),  # another order, and another spelling
        (ROWS[0], 1),
        ("\n".join([*ROWS, ROWS[0]]), 1),
        ("", 1),
    ],
)
def test_trial_compares_rows_whatever_their_order(
    tried: Callable[..., Any], tmp_path: Path, expected: str, code: int
) -> None:
    (tmp_path / "rows").write_text(expected)
    assert tried("--expect", str(tmp_path / "rows")).exit_code == code


def test_trial_writes_what_is_expected_from_now_on(tried: Callable[..., Any], tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    assert tried("--expect", str(rows), "--update").exit_code == 0
    assert rows.read_text().splitlines() == ROWS
    assert tried("--expect", str(rows)).exit_code == 0


def test_trial_cuts_records_at_line_breaks_alone(tmp_path: Path) -> None:
    (tmp_path / "records").write_text('{"a": "\u2028\x85"}\n\n{"b": 1}\n')
    assert trial._lines(tmp_path / "records") == ['{"a": "\u2028\x85"}', "", '{"b": 1}']


def test_trial_refuses_files_that_are_not_there(tried: Callable[..., Any], tmp_path: Path) -> None:
    assert tried("--update").exit_code == ExitCode.CONFIG
    assert tried("--expect", str(tmp_path / "none")).exit_code == ExitCode.CONFIG
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert tried("--expect", str(tmp_path / "bytes")).exit_code == ExitCode.CONFIG
