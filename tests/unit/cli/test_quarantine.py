"""``sluice quarantine``, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.fixtures.specs import run_cli
from tests.unit.delta.test_samples import ERRORS, ZERO, entry
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    file = tmp_path / "p.yaml"
    file.write_text("pipeline: p\nsource: {kafka: {topics: [t]}}\ndecode: {text: {}}\nsink: {delta: {path: p}}\n")
    return file


def asked(file: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["quarantine", str(file), *arguments])


def fill(file: Path) -> None:
    rows = [entry(n, "json" if n % 2 else "type", b'{"id": [bold]%d' % n, None if n % 2 else "id") for n in range(3)]
    fields = [("_errors", ERRORS)]
    table = pa.Table.from_pylist(rows).drop_columns(["_errors"])
    errors = pa.array([row["_errors"] for row in rows], fields[0][1])
    write_deltalake(str(file.parent / "p_quarantine"), table.append_column("_errors", errors))


def test_people_see_counts_samples_and_the_next_command(file: Path) -> None:
    fill(file)
    done = asked(file, "--show", "1")
    assert done.exit_code == 0
    assert "type" in done.stdout
    where = "t-0 offset 2 (2026-01-01T02:00:00+00:00), run a\n  broke type, column id\n"
    assert f"{where}  key 'k2', value '{{\"id\": [bold]2'" in done.stdout
    assert f"3 records are in quarantine: {file.parent}/p_quarantine" in done.stderr
    assert f"sluice redrive {file} --quarantined" in done.stderr


def test_programs_get_json(file: Path) -> None:
    fill(file)
    found = json.loads(asked(file, "--rule", "json", "--since", ZERO.isoformat(), "--show", "5", "--json").stdout)
    assert (found["pipeline"], found["records"], found["groups"][0]["rule"]) == ("p", 1, "json")
    assert [sample["offset"] for sample in found["samples"]] == [1]


def test_nothing_is_said_to_be_nothing(file: Path) -> None:
    assert "nothing is in quarantine" in asked(file).stderr
    fill(file)
    assert "nothing of that is in quarantine" in asked(file, "--since", "1h").stderr


def test_a_time_that_is_none_is_told(file: Path) -> None:
    for option in ("--since", "--before"):
        failed = asked(file, option, "yesterday").exception
        assert isinstance(failed, ConfigError)
        assert f"{option}: 'yesterday' is neither a time nor an age" in str(failed)
        assert "nor an age; did you mean 5m?" in str(asked(file, option, "5min").exception)


@pytest.mark.parametrize(
    "options",
    [("--drop",), ("--reason", "x"), ("--drop", "--reason", " "), ("--drop", "--reason", "x", "--since", "1h")],
)
def test_nothing_is_dropped_without_a_reason_or_since_a_time(
    file: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    fill(file)
    assert run_cli(monkeypatch, "quarantine", str(file), *options) == 10
    assert "--drop and --reason go together" in capsys.readouterr().err


def test_what_is_not_there_is_not_dropped(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(file)
    assert run_cli(monkeypatch, "quarantine", str(file), "--drop", "--reason", "x", "--rule", "nosuch") == 10
    assert "no such record is in quarantine" in capsys.readouterr().err


def test_that_nothing_is_old_enough_to_drop_is_no_mistake(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A retention runs each day, from the first day on."""
    asked = ("quarantine", str(file), "--drop", "--reason", "x", "--json")
    assert run_cli(monkeypatch, *asked) == 0
    fill(file)
    assert run_cli(monkeypatch, *asked, "--before", "2001-01-01T00:00:00Z") == 0
    said = capsys.readouterr()
    assert [json.loads(line)["dropped"] for line in said.out.splitlines()] == [0, 0]
    assert "there is nothing to drop" in said.err
    assert run_cli(monkeypatch, *asked, "--before", "2001-01-01T00:00:00Z", "--run", "nosuch") == 10
