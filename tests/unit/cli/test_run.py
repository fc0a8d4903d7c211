"""``sluice run``, ``preview`` and ``validate-spec`` around the applications that they start."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.fixtures.books import Place, split
from tests.fixtures.specs import GOOD, expectation, write, write_suite
from tests.unit.cli.conftest import Sluice

from sluice.cli import preview, validate_spec
from sluice.cli import run as drive
from sluice.cli.validate_spec import judges
from sluice.errors import ExitCode
from sluice.ledger.events import Judged, RunClosed
from sluice.pipeline import Pipeline, load
from sluice.pipeline.suite import UNASKED


def test_run_that_failed_has_the_account_of_its_own_attempt(
    place: Place, sluice: Sluice, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, ledger = load(str(place.file)), place.ledger

    def account(run: str, code: int) -> Any:
        assert drive.ended(spec, run, code, as_json=True) == code
        return json.loads(capsys.readouterr().out or "null")

    assert account("never planned", 30) is None
    place.commit("r", split(0, 4))
    ledger.decide("p", "r", Judged(verdict="passed", judgement={}))
    assert account("r", 40) is None, "an attempt that never began"
    with ledger.acquire("p", "r") as lease:
        ledger.record(lease, RunClosed(state="failed", error={"exit_code": 20, "what": "no broker answers"}))
    found = account("r", 20)
    assert (found["run"], found["planned"], found["written"], found["verdict"]) == ("r", 4, 4, "passed")
    assert found["error"] == {"exit_code": 20, "what": "no broker answers"}


class Failing:
    """An application that says something as Spark's does, on stdout, and fails."""

    def __init__(self, words: str, code: int) -> None:
        self.words, self.code, self.env = words, code, dict[str, str]()

    def argv(self) -> list[str]:
        return [sys.executable, "-c", f"print({self.words!r}); raise SystemExit({self.code})"]


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        ("10:00:00 sluice: noise\nsluice: error: no column\n  next: x", 10, "sluice: error: no column\n  next: x\n"),
        ("Traceback\nsluice: error: ValueError: x", 1, "Traceback\nsluice: error: ValueError: x\n"),
        ("Killed", 137, "Killed\n"),
    ],
)
def test_preview_prints_why_its_application_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, shown: str
) -> None:
    failing: Any = Failing(words, code)
    with pytest.raises(typer.Exit) as end:
        preview.answer(failing, tmp_path / "result.json")
    assert (end.value.exit_code, capsys.readouterr().err) == (code, shown)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("kafka:\n    topics: [t]", "file: {path: inbox, format: json}"),
        GOOD + "window: {time: at, size: 1h, watermark: 1h, aggregates: {n: count(*)}}\n",
    ],
    ids=["file", "window"],
)
def test_preview_refuses_before_spark_starts(
    tmp_path: Path, sluice: Sluice, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(preview, "looked", lambda *_: pytest.fail("Spark was started"))
    assert sluice("preview", str(write(tmp_path, text))).exit_code == ExitCode.CONFIG
    sluice.recorded("preview")


@pytest.mark.parametrize("missing", ["java", "JAVA_HOME", "jars"])
def test_validate_spec_names_checks_that_it_left_out(
    tmp_path: Path, sluice: Sluice, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    file = write_suite(tmp_path, {"expectations": [expectation()]})
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "none"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if missing == "JAVA_HOME":
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    gone = {"java": "java", "JAVA_HOME": f"{tmp_path}/bin/java"}.get(missing)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == gone else "/usr/bin/" + name)
    assert sluice("validate-spec", str(file)).exit_code == 0
    sluice.recorded("validate-spec")


def test_validate_spec_reports_each_file(tmp_path: Path, sluice: Sluice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_PIPELINES")
    good, bad = str(write(tmp_path, GOOD)), str(write(tmp_path, GOOD + "zzz: 1\n", "bad.yaml"))
    suite = str(write_suite(tmp_path, {"expectations": [expectation(severity="fatal")]}))
    check = ("validate-spec", "--no-spark")
    assert sluice(*check, good).exit_code == 0
    done = sluice(*check, good, bad, "--json")
    found = {row["file"]: row for row in done.json}
    assert (done.exit_code, found[good]["valid"], found[bad]["valid"]) == (ExitCode.CONFIG, True, False)
    assert "line 9: zzz" in found[bad]["error"]
    for command in ((*check, bad), (*check, suite), (*check, "no-such-pipeline", "--json"), ("run", bad)):
        assert sluice(*command).exit_code == ExitCode.CONFIG
    sluice.recorded("validate-spec")


def test_validate_spec_goes_on_behind_a_file_whose_check_ends_the_process(
    tmp_path: Path, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [GOOD.replace("pipeline: p", f"pipeline: p{n}").replace("path: p", f"path: p{n}") for n in range(4)]
    files = [str(write(tmp_path, text, f"p{n}.yaml")) for n, text in enumerate(own)]
    sound = {"problems": [], "path": "Arrow path", "suite": [], "windows": None}
    asked = []

    def once(pipelines: Sequence[Pipeline]) -> tuple[dict[str, Any], int]:
        asked.append([Path(str(pipeline.file)).stem for pipeline in pipelines])
        found = itertools.takewhile(lambda pipeline: pipeline.file.stem not in ("p1", "p2"), pipelines)
        return {str(pipeline.file): sound for pipeline in found}, 7

    monkeypatch.setattr(validate_spec, "_checked_once", once)
    found = {row["file"]: row for row in sluice("validate-spec", *files, "--json").json}
    assert asked == [["p0", "p1", "p2", "p3"], ["p2", "p3"], ["p3"]]
    assert [found[file]["valid"] for file in files] == [True, False, False, True]
    assert "with code 7" in found[files[1]]["error"]


def test_validate_spec_names_expectations_that_great_expectations_alone_judges() -> None:
    row = {"number": 1, "expectation": "expect_a", "row_rule": True, "why": None}
    table = {"number": 2, "expectation": "expect_b", "row_rule": False, "why": "it is about the whole table"}
    unasked = {"number": 1, "expectation": "expect_a", "row_rule": False, "why": UNASKED}
    assert judges([]) == []
    assert judges([unasked, table]) == [
        "no expectation splits rows: the run is judged as a whole. With quality.split: critical, 1 of 2 would send the "
        "rows that break them to the quarantine"
    ]
    assert judges([row]) == ["1 of 1 expectations split the rows of a run"]
    assert judges([row, table]) == [
        "1 of 2 expectations split the rows of a run; Great Expectations alone judges:",
        "- 2 expect_b: it is about the whole table",
    ]
