"""``sluice``: its exit codes and what its small commands print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.specs import run_cli

import bounded_run
import redrive
from sluice.errors import ConfigError
from sluice.ledger import Ledger
from sluice.pipeline.quality import Quality
from sluice.ranges import Counts, OffsetRange
from sluice.run.verdict import WARNS
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import excesses


def test_status_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLUICE_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    ledger = Ledger.open()
    with ledger.acquire("p", "r") as lease:
        ranges = [OffsetRange("t", 0, 0, 1)]
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=ranges, topic_ids={"t": "i"})
        found = tuple(excesses(Quality(), Counts(quarantined=5)))
        judgement = Judgement("s", 0, excesses=found, wrote=False)
        ledger.judged(lease, "p", "r", verdict=judgement.verdict, judgement=judgement.as_dict())
    assert run_cli(monkeypatch, "status", "p") == 0
    said = capsys.readouterr().err
    assert "r: failed: max_quarantined: 5 of 5 records (100 %) are in quarantine, and 1% may be" in said
    assert f"r: warned: {found[1]}\n" in said
    assert [why.removesuffix(WARNS) for why in ledger.account("p", "r")["reasons"]] == [str(e) for e in found]
    with ledger.acquire("p", "s") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={"t": "i"})
        ledger.run_closed(lease, state="failed", error={"what": "no broker answers"})
    assert run_cli(monkeypatch, "status", "p") == 0
    assert "s: failed: no broker answers\n" in capsys.readouterr().err


def test_a_wrong_command_line_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli(monkeypatch, "run", "p", "--recovery", "nope") == 2
    for main_of in (bounded_run.parse, redrive.parse):
        with pytest.raises(ConfigError, match="required"):
            main_of([])


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("status", "nosuch"), 10, "there is no pipeline 'nosuch'"),
        (("quarantine", "nosuch"), 10, "there is no pipeline 'nosuch'"),
        (("ledger", "p", "--run", "nosuch"), 10, "the ledger has no run 'nosuch' of 'p'"),
        (("status", "--limit", "x"), 2, "wrong option or argument: stderr says more"),
    ],
)
def test_a_program_that_asks_for_json_gets_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], code: int, what: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SLUICE_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    with Ledger.open().acquire("p", "r") as lease:
        Ledger.open().run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
    assert run_cli(monkeypatch, *arguments, "--json") == code
    told = json.loads(capsys.readouterr().out)["error"]
    assert (told["what"], told["exit_code"]) == (what, code)
    assert run_cli(monkeypatch, *arguments) == code
    assert capsys.readouterr().out == "", "people read stderr"


def test_a_locale_that_lacks_letters_is_no_error() -> None:
    here = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys; sys.argv = ['sluice', 'run', '--help']; from sluice.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)
    assert (done.returncode, "\\u2026" in done.stdout) == (0, True), done.stderr


def test_help_has_a_short_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("-h",), ("run", "-h")):
        assert run_cli(monkeypatch, *arguments) == 0
        assert "Usage:" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "ledger", "audit"])
def test_an_empty_ledger_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "another"))
    file = tmp_path / "p.yaml"
    file.write_text(
        'pipeline: p\nsource: {kafka: {topics: [p]}}\ndecode: {json: {schema: "a INT"}}\nsink: {delta: {path: p}}\n'
    )
    assert run_cli(monkeypatch, command, str(file)) == 0
    assert f"in the ledger sqlite:///{tmp_path}/another/ledger.db" in capsys.readouterr().err
