"""``sluice validate-spec``: what is wrong is told with its exit code, and what cannot be checked is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.fixtures.specs import GOOD, expectation, run_cli, write, write_suite

from sluice.cli.validate_spec import judges
from sluice.pipeline.suite import UNASKED


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


def test_who_can_judge_which_expectation_is_said() -> None:
    row = {"number": 1, "expectation": "expect_a", "row_rule": True, "why": None}
    table = {"number": 2, "expectation": "expect_b", "row_rule": False, "why": "it is about the whole table"}
    unasked = {"number": 1, "expectation": "expect_a", "row_rule": False, "why": UNASKED}
    assert judges([]) == []
    assert judges([unasked, table]) == ["1 of 2 expectations could split the rows of a run (quality.split: critical)"]
    assert judges([row]) == ["1 of 1 expectations split the rows of a run"]
    assert judges([row, table]) == [
        "1 of 2 expectations split the rows of a run; Great Expectations alone judges:",
        "- 2 expect_b: it is about the whole table",
    ]
