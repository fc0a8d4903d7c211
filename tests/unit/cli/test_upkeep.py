"""``sluice compact`` and ``sluice vacuum``, as they are typed."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.fixtures.books import Place
from tests.fixtures.deltas import aged
from tests.fixtures.specs import GOOD, run_cli, write
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.errors import ConfigError


@pytest.fixture
def told(story: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A pipeline with tables, in the home that the commands use."""
    monkeypatch.setenv("SLUICE_HOME", story.home.root)
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    story.write()
    return story


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_what_was_done_is_told_to_programs(told: Place) -> None:
    dry = json.loads(run("compact", str(told.file), "--dry-run", "--json"))
    assert (dry["dry_run"], dry["tables"][0]["small"]) == (True, 3)
    done = json.loads(run("compact", str(told.file), "--json"))
    assert (done["pipeline"], done["dry_run"], done["tables"][0]["merged"]) == ("p", False, 3)
    aged(told.path, timedelta(days=8))
    assert json.loads(run("vacuum", str(told.file), "--dry-run", "--json"))["tables"][0]["files"] == 3
    assert json.loads(run("vacuum", str(told.file), "--older-than", "9d", "--json"))["tables"][0]["files"] == 0
    assert json.loads(run("vacuum", str(told.file), "--json"))["tables"][0]["files"] == 3
    assert DeltaTable(told.path).count() == len(told.sink)


def test_people_read_it_on_stderr(told: Place, capsys: pytest.CaptureFixture[str]) -> None:
    from sluice.cli.upkeep import compact, vacuum

    compact(str(told.file), dry_run=True, as_json=False)
    compact(str(told.file), dry_run=False, as_json=False)
    vacuum(str(told.file), older_than=None, dry_run=False, as_json=False)
    said = capsys.readouterr()
    assert said.out == ""
    for words in ("3 of 3 files are small", "3 files were merged into 1", "0 files were removed"):
        assert f"sink {told.path}: {words}" in said.err


def test_that_there_is_no_table_yet_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    for command in ("compact", "vacuum"):
        assert run_cli(monkeypatch, command, str(write(tmp_path, GOOD))) == 0
        assert "p has no Delta table yet" in capsys.readouterr().err


def test_an_age_that_is_none_is_refused(told: Place) -> None:
    with pytest.raises(ConfigError, match="--older-than: 'soon' is not a duration"):
        run("vacuum", str(told.file), "--older-than", "soon")
