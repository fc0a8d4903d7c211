"""``sluice``: help, exit codes, JSON for programs, and the small commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.fixtures.books import Place
from tests.fixtures.golden import Golden
from tests.fixtures.specs import run_cli
from tests.unit.cli.conftest import Sluice
from typer.testing import CliRunner

import bounded_run
import redrive
from sluice.cli.main import app
from sluice.errors import ConfigError
from sluice.pipeline.quality import Quality
from sluice.ranges import Counts, OffsetRange
from sluice.run.verdict import WARNS
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import excesses

COMMANDS = list(typer.main.get_group(app).commands)


@pytest.mark.parametrize("command", ["sluice", *COMMANDS])
def test_help(command: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)
    path = () if command == "sluice" else (command,)
    shown = [CliRunner().invoke(app, [*path, option], prog_name="sluice").stdout for option in ("-h", "--help")]
    assert shown[0] == shown[1]
    golden(command, shown[0])


def test_status_shows_why_runs_failed(place: Place, sluice: Sluice, golden: Golden) -> None:
    ledger = place.ledger
    with ledger.acquire("p", "r") as lease:
        ranges = [OffsetRange("t", 0, 0, 1)]
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=ranges, topic_ids={"t": "i"})
        found = tuple(excesses(Quality(), Counts(quarantined=5)))
        judgement = Judgement("s", 0, excesses=found, wrote=False)
        ledger.judged(lease, "p", "r", verdict=judgement.verdict, judgement=judgement.as_dict())
    with ledger.acquire("p", "s") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={"t": "i"})
        ledger.run_closed(lease, state="failed", error={"what": "no broker answers"})
    assert [why.removesuffix(WARNS) for why in ledger.account("p", "r")["reasons"]] == [str(e) for e in found]
    done = sluice("status", "p")
    assert "s: failed: no broker answers\n" in done.stderr
    golden("status", done.stderr)


def test_wrong_command_line_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli(monkeypatch, "run", "p", "--recovery", "nope") == 2
    for main_of in (bounded_run.parse, redrive.parse):
        with pytest.raises(ConfigError, match="required"):
            main_of([])


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("status", "nosuch"), 10, "'nosuch'"),
        (("quarantine", "nosuch"), 10, "'nosuch'"),
        (("ledger", "p", "--run", "nosuch"), 10, "'nosuch' of 'p'"),
        (("status", "--limit", "x"), 2, "stderr"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_error_is_json_for_a_program_that_asks_for_json(
    place: Place, sluice: Sluice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], code: int, what: str,
) -> None:  # fmt: skip
    with place.ledger.acquire("p", "r") as lease:
        place.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
    assert run_cli(monkeypatch, *arguments, "--json") == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert (what in error["what"], error["exit_code"]) == (True, code)
    assert run_cli(monkeypatch, *arguments) == code
    assert capsys.readouterr().out == "", "people read stderr"


def test_locale_that_lacks_letters_is_no_error() -> None:
    here = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys; sys.argv = ['sluice', 'run', '--help']; from sluice.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)
    assert (done.returncode, "\\u2026" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("command", ["status", "ledger", "audit"])
def test_empty_ledger_is_named(
    command: str, place: Place, sluice: Sluice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "another"))
    done = sluice(command, str(place.file))
    assert (done.exit_code, f"sqlite:///{tmp_path}/another/ledger.db" in done.stderr) == (0, True)
