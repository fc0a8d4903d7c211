"""``sluice``: its exit codes and what its small commands print."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.specs import run_cli

import bounded_run
import redrive
from sluice.errors import ConfigError
from sluice.ledger import Ledger
from sluice.pipeline.quality import Quality
from sluice.ranges import Counts, OffsetRange
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
    assert "r: failed: max_quarantined: 5 of 5 records (100 %) are in quarantine, and 1% may be" in (
        capsys.readouterr().err
    )
    assert ledger.account("p", "r")["reasons"] == [str(e) for e in found]


def test_a_wrong_command_line_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli(monkeypatch, "run", "p", "--recovery", "nope") == 2
    for main_of in (bounded_run.parse, redrive.parse):
        with pytest.raises(ConfigError, match="required"):
            main_of([])


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
