"""``sluice preview``: what it refuses, and that it says why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.fixtures.specs import GOOD, run_cli, write

from sluice.cli import preview as command


class Said:
    """An application that says something as Spark's does, on stdout, and fails."""

    def __init__(self, words: str, code: int) -> None:
        self.words, self.code, self.env = words, code, dict[str, str]()

    def argv(self) -> list[str]:
        return [sys.executable, "-c", f"print({self.words!r}); raise SystemExit({self.code})"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("10:00:00 sluice: noise\nsluice: error: no column\n  next: x", 10, "sluice: error: no column\n  next: x\n"),
        ("Traceback\nsluice: error: ValueError: x", 1, "Traceback\nsluice: error: ValueError: x\n"),
        ("Killed", 137, "Killed\n"),
    ],
)  # fmt: skip
def test_why_the_application_failed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, told: str
) -> None:
    said: Any = Said(words, code)
    with pytest.raises(typer.Exit) as end:
        command.looked(said, tmp_path / "result.json")
    assert (end.value.exit_code, capsys.readouterr().err) == (code, told)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("kafka:\n    topics: [t]", "file: {path: inbox, format: json}"), "has source.file"),
        (GOOD + "window: {time: at, size: 1h, watermark: 1h, aggregates: {n: count(*)}}\n", "has a window"),
    ],
)
def test_what_has_no_preview_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    monkeypatch.setattr(command, "looked", lambda *_: pytest.fail("Spark was started"))
    assert run_cli(monkeypatch, "preview", str(write(tmp_path, text))) == 10
    assert said in capsys.readouterr().err
