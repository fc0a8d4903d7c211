"""The commands as they are typed, in a home of the test's own, and what they print for people."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place
from tests.fixtures.golden import Golden
from typer.testing import CliRunner

from sluice.cli.app import app
from sluice.errors import SluiceError


@dataclass
class Said:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str
    error: SluiceError | None

    @property
    def json(self) -> Any:
        """Its output for programs."""
        return json.loads(self.stdout)


@dataclass
class Sluice:
    """Runs commands, and keeps what they print for people."""

    golden: Golden
    transcript: str = ""

    def __call__(self, *arguments: str) -> Said:
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
        error = done.exception if isinstance(done.exception, SluiceError) else None
        if done.exception and not isinstance(done.exception, SluiceError | SystemExit):
            raise done.exception
        code = int(error.exit_code) if error else done.exit_code
        if "--json" not in arguments:
            said = "".join(f"{text.strip()}\n" for text in (done.stdout, done.stderr, str(error or "")) if text.strip())
            self.transcript += f"$ sluice {shlex.join(arguments)}\n{said}exit {code}\n\n"
        return Said(code, done.stdout, done.stderr, error)

    def recorded(self, command: str) -> None:
        """Compare all that was printed with the recorded texts of a command."""
        self.golden(command, self.transcript)


@pytest.fixture
def sluice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> Sluice:
    """Run commands in the home ``tmp_path``, which is also the folder of the pipelines."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return Sluice(golden)


@pytest.fixture
def held(place: Place) -> Place:
    """A pipeline whose run ``a`` failed its verdict, which holds it."""
    place.configure(quality={"on_failed": "hold"})
    place.judged("a", "failed")
    return place
