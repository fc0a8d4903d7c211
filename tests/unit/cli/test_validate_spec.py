"""``sluice validate-spec``: what is wrong is told with its exit code, and what cannot be checked is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.fixtures.specs import GOOD, expectation, run_cli, write, write_suite


def test_validate_spec_opens_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_suite(tmp_path, {"expectations": [expectation(severity="fatal")]})
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", "--json", str(file)) == 10
    (told,) = json.loads(capsys.readouterr().out)
    assert told["valid"] is False
    assert "severity 'fatal' is unknown" in told["error"]


@pytest.mark.parametrize("missing", ["java", "JAVA_HOME", "jars"])
def test_what_cannot_be_checked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    file = write_suite(tmp_path, {"expectations": [expectation()]})
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "none"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if missing == "JAVA_HOME":
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = None if missing == "java" else "/usr/bin/java"
    monkeypatch.setattr(shutil, "which", lambda name: found if name == "java" else "/usr/bin/" + name)
    assert run_cli(monkeypatch, "validate-spec", str(file)) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "p.yaml: valid as far as it was checked" in said
    assert "not checked: whether the transform can be planned" in said
    assert ("jars are absent" if missing == "jars" else "there is no Java here") in said


def test_the_command_line_says_it_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path, GOOD)
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(good)) == 0
    bad = write(tmp_path, GOOD + "zzz: 1\n", "bad.yaml")
    capsys.readouterr()
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", str(good), str(bad), "--json") == 10
    told = {r["file"]: r for r in json.loads(capsys.readouterr().out)}
    assert told[str(good)]["valid"] is True
    assert "line 9: zzz: unknown key" in told[str(bad)]["error"]
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    assert run_cli(monkeypatch, "run", str(bad)) == 10
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", "no-such-pipeline") == 10
